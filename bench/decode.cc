// SPDX-License-Identifier: Apache-2.0
// One query at a time: over many keys, which is bound by memory, and over few, which is bound by
// the overhead of a call.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "groups.h"
#include "machine.h"

namespace qkv::bench {
namespace {

struct DecodeCase {
  DType dtype;
  Index D;
  Index queries;  // for each key head
  double share;
};
// Of a plain read of the same bytes.
constexpr DecodeCase kDecode[] = {
    {DType::kFloat32, 64, 1, 0.92},   {DType::kFloat32, 64, 4, 0.86},
    {DType::kFloat32, 64, 8, 0.82},   {DType::kFloat32, 128, 1, 0.92},
    {DType::kFloat32, 128, 4, 0.86},  {DType::kFloat32, 128, 8, 0.82},
    {DType::kBFloat16, 128, 1, 0.80}, {DType::kBFloat16, 128, 4, 0.70},
    {DType::kBFloat16, 128, 8, 0.60}, {DType::kFloat16, 128, 1, 0.80},
    {DType::kFloat16, 128, 4, 0.70},  {DType::kFloat16, 128, 8, 0.60},
};

// Keys and values of at least four times the last-level cache, but at most 1 GiB.
Index entries_for(Index Tk, const DecodeCase& x) {
  constexpr double kMost = 0x1p30;
  const double wanted = std::min(kMost, 4 * static_cast<double>(last_cache_bytes()));
  const auto each = static_cast<double>(2 * Tk * x.D) * static_cast<double>(size_of(x.dtype));
  return std::max<Index>(1, static_cast<Index>(wanted / each));
}

}  // namespace

void run_decode(Session& session) {
  const Index Tk = session.length(16384);
  for (const DecodeCase& x : kDecode) {
    const Index entries = session.is_quick() ? 2 : entries_for(Tk, x);
    Problem problem =
        make_problem({.B = entries, .H = x.queries, .Tq = 1, .Tk = Tk, .D = x.D, .dtype = x.dtype});
    const std::string type = x.dtype == DType::kFloat32 ? "" : fmt::format("-{}", name_of(x.dtype));
    session.share_of_read({fmt::format("decode/T{}-D{}-queries{}{}", Tk, x.D, x.queries, type),
                           x.share, session.threads()},
                          problem);
    session.rows().back().note = fmt::format("{:.0f} MiB of keys and values; last cache {:.0f} MiB",
                                             session.rows().back().work / 0x1p20,
                                             static_cast<double>(last_cache_bytes()) / 0x1p20);
  }
}

// The smallest of the seeds' examples.
void run_small(Session& session) {
  constexpr double kTarget = 1e-6;
  Problem problem = make_problem({.B = 2, .Tq = 1, .Tk = 10, .D = 2});
  session.alone({"small/plan", kTarget}, problem, nullptr);
  Context context;
  session.alone({"small/attention", kTarget}, problem, [&] {
    attention(problem.inputs(), problem.options, {.out = problem.out}, context);
  });
}

}  // namespace qkv::bench
