// SPDX-License-Identifier: Apache-2.0
// Gradients of one head, held against the multiply-add peak: on one thread and on all.
#include <fmt/format.h>

#include "groups.h"

namespace qkv::bench {
namespace {

struct Case {
  Index T;
  Index D;
  std::optional<double> target;
};

constexpr double kTarget = 0.88;
constexpr Case kPlain[] = {
    {512, 64, std::nullopt}, {1024, 64, kTarget},  {1024, 128, kTarget},
    {2048, 64, kTarget},     {2048, 128, kTarget}, {4096, 64, kTarget},
};
constexpr double kThreadsTarget = 0.86;
constexpr Case kThreads[] = {
    {1024, 64, kThreadsTarget}, {2048, 64, kThreadsTarget}, {2048, 128, kThreadsTarget}};

void run_one(Session& session, const Wanted& wanted, const Shape& shape, const Options& options) {
  Problem problem = make_problem(shape);
  problem.options = options;
  turn_backward(problem);
  session.share_of_peak(wanted, problem);
}

std::string name_of(const Shape& shape) {
  return fmt::format("backward/T{}-D{}", shape.Tq, shape.D);
}

}  // namespace

void run_backward(Session& session) {
  for (const Case& one : kPlain) {
    const Shape shape = square(session.length(one.T), one.D);
    run_one(session, {name_of(shape), one.target}, shape, {});
  }
  const Shape causal = square(session.length(2048), 64);
  run_one(session, {name_of(causal) + "-causal"}, causal, {.masks = {Causal{}}});
  Shape doubles = causal;
  doubles.dtype = DType::kFloat64;
  run_one(session, {name_of(doubles) + "-float64"}, doubles, {});
  if (session.threads() > 1) {
    for (const Case& one : kThreads) {
      const Shape shape = square(session.length(one.T), one.D);
      run_one(session, {name_of(shape) + "-threads", one.target, session.threads()}, shape, {});
    }
  }
  run_backward_options(session);
}

}  // namespace qkv::bench
