// SPDX-License-Identifier: Apache-2.0
// One query at a time: over many keys, which is bound by memory, and over few, which is bound by
// the overhead of a call.
#include <algorithm>

#include <fmt/format.h>

#include "groups.h"
#include "machine.h"

namespace qkv::bench {
namespace {

struct DecodeTarget {
  Index queries;  // for each key head
  double share;
};
constexpr DecodeTarget kDecode[] = {{1, 0.92}, {4, 0.86}, {8, 0.82}};

// Keys and values of at least four times the last-level cache, but at most 1 GiB.
Index entries_for(Index Tk, Index D) {
  constexpr double kMost = 0x1p30;
  const double wanted = std::min(kMost, 4 * static_cast<double>(last_cache_bytes()));
  const auto each = static_cast<double>(2 * Tk * D) * sizeof(float);
  return std::max<Index>(1, static_cast<Index>(wanted / each));
}

}  // namespace

void run_decode(Session& session) {
  constexpr Index kWidth = 64;
  const Index Tk = session.length(16384);
  const Index entries = session.is_quick() ? 2 : entries_for(Tk, kWidth);
  for (const DecodeTarget& target : kDecode) {
    Problem problem =
        make_problem({.B = entries, .H = target.queries, .Tq = 1, .Tk = Tk, .D = kWidth});
    session.share_of_read(
        {fmt::format("decode/T{}-queries{}", Tk, target.queries), target.share, session.threads()},
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
