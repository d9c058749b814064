// SPDX-License-Identifier: Apache-2.0
// The groups forward, widths and threads: calls of one head, most of them without options.
#include <algorithm>

#include <fmt/format.h>

#include "groups.h"

namespace qkv::bench {
namespace {

struct ForwardTarget {
  Index T;
  Index D;
  double share;  // of the multiply-add peak
};

constexpr ForwardTarget kPlain[] = {
    {128, 64, 0.55},   {512, 64, 0.79},  {512, 128, 0.81},  {2048, 64, 0.84},
    {2048, 128, 0.87}, {8192, 64, 0.82}, {16384, 64, 0.82}, {2048, 40, 0.70},
    {2048, 63, 0.80},  {2048, 65, 0.74}, {2048, 80, 0.80},  {2048, 96, 0.80},
};
constexpr ForwardTarget kCausal[] = {{2048, 64, 0.78}, {4096, 64, 0.78}, {2048, 128, 0.78}};

void share_forward(Session& session, const Wanted& wanted, const Shape& shape,
                   const Options& options) {
  Problem problem = make_problem(shape);
  problem.options = options;
  session.share_of_peak(wanted, problem);
}

// ---- widths ---------------------------------------------------------------------------------

// A width D and a round width, whose multiply-adds per second are compared.
struct Neighbours {
  Index D;
  Index round;
};
// Widths that must not be much slower than a round width near them.
constexpr Neighbours kNeighbours[] = {{63, 64}, {65, 64}, {80, 64}, {96, 128}, {100, 128}};
constexpr double kNeighbourShare = 0.7;
constexpr double kTenth = 0.1;  // of the usual measuring time, since there are 256 rows
constexpr Index kMostWidth = 256;
constexpr Index kRoundWidth = 64;

void run_width(Session& session, const Neighbours& widths, std::optional<double> target) {
  const Index T = session.length(1024);
  Problem problem = make_problem(square(T, widths.D));
  Problem round = make_problem(square(T, widths.round));
  const std::string name = target ? fmt::format("widths/D{}-beside-D{}", widths.D, widths.round)
                                  : fmt::format("widths/D{}", widths.D);
  session.against({name, target, 1, target ? 1 : kTenth}, problem, round, Figure::kPerMultiply);
}

// Adds a copy of the row with the lowest figure among the widths from `least` on.
void add_worst(Session& session, const std::string& name, Index least) {
  const Row* worst = nullptr;
  for (Index D = least; D <= kMostWidth; ++D) {
    const auto row = std::ranges::find(session.rows(), fmt::format("widths/D{}", D), &Row::name);
    if (row == session.rows().end() || !row->value) continue;
    if (worst == nullptr || *row->value < *worst->value) worst = &*row;
  }
  if (worst == nullptr) return;
  Row row = *worst;
  row.note = worst->name;
  row.name = name;
  session.add(row);
}

}  // namespace

void run_forward(Session& session) {
  for (const ForwardTarget& target : kPlain) {
    const Shape shape = square(session.length(target.T), target.D);
    share_forward(session, {"forward/" + name_of(shape), target.share}, shape, {});
  }
  Options causal;
  causal.masks = {Causal{}};
  for (const ForwardTarget& target : kCausal) {
    const Shape shape = square(session.length(target.T), target.D);
    share_forward(session, {"forward/" + name_of(shape) + "-causal", target.share}, shape, causal);
  }
  for (const Index D : {64, 128}) {
    constexpr double kShare = 0.75;  // of the peak of BF16 products, or else of float32
    Shape narrow = square(session.length(2048), D);
    narrow.dtype = DType::kBFloat16;
    share_forward(session, {"forward/" + name_of(narrow) + "-bfloat16", kShare}, narrow, {});
  }
  Shape doubles = square(session.length(2048), 64);
  doubles.dtype = DType::kFloat64;
  share_forward(session, {"forward/" + name_of(doubles) + "-float64"}, doubles, {});
}

void run_widths(Session& session) {
  const Index step = session.is_quick() ? 50 : 1;
  for (Index D = 1; D <= kMostWidth; D += step) {
    const Index round = (D + kRoundWidth - 1) / kRoundWidth * kRoundWidth;
    run_width(session, {D, round}, std::nullopt);
  }
  for (const Neighbours& widths : kNeighbours) run_width(session, widths, kNeighbourShare);
  add_worst(session, "widths/worst", 1);
  add_worst(session, "widths/worst-from-D32", kRoundWidth / 2);
}

void run_threads(Session& session) {
  constexpr double kTarget = 0.95;
  for (const Index T : {1024, 2048, 4096}) {
    Problem problem = make_problem(square(session.length(T), 64));
    const std::string name = "threads/" + name_of(problem.shape);
    if (session.threads() > 1) {
      session.threads_share({name, kTarget, session.threads()}, problem);
      session.share_of_peak({name + "-share", std::nullopt, session.threads()}, problem);
    }
  }
}

}  // namespace qkv::bench
