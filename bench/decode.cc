// SPDX-License-Identifier: Apache-2.0
// Two groups of calls with one query: "decode" over many keys, bound by reads of memory, and
// "small" over few keys, bound by the overhead of a call.
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
  Index queries;  // query heads for each key head
  double share;   // the target: the rate as a share of a plain read's of the same bytes
};
constexpr DecodeCase kDecode[] = {
    {DType::kFloat32, 64, 1, 0.92},   {DType::kFloat32, 64, 4, 0.86},
    {DType::kFloat32, 64, 8, 0.82},   {DType::kFloat32, 128, 1, 0.92},
    {DType::kFloat32, 128, 4, 0.86},  {DType::kFloat32, 128, 8, 0.82},
    {DType::kBFloat16, 128, 1, 0.80}, {DType::kBFloat16, 128, 4, 0.70},
    {DType::kBFloat16, 128, 8, 0.60}, {DType::kFloat16, 128, 1, 0.80},
    {DType::kFloat16, 128, 4, 0.70},  {DType::kFloat16, 128, 8, 0.60},
    {DType::kQ8, 64, 1, 0.70},        {DType::kQ8, 64, 4, 0.70},
    {DType::kQ8, 64, 8, 0.70},        {DType::kQ8, 128, 1, 0.70},
    {DType::kQ8, 128, 4, 0.70},       {DType::kQ8, 128, 8, 0.70},
};

// Calls with keys in pages have 8 key heads, since serving engines store the keys of all heads of a
// token together. These calls have no targets, so `share` is not read.
constexpr Index kPagedHeads = 8;
constexpr DecodeCase kPaged[] = {
    {DType::kFloat32, 64, 1, 0},   {DType::kFloat32, 128, 1, 0}, {DType::kFloat32, 128, 4, 0},
    {DType::kBFloat16, 128, 1, 0}, {DType::kQ8, 128, 1, 0},
};

std::string decode_name(Index Tk, Index G, const DecodeCase& x, const std::string& order) {
  const std::string type = x.dtype == DType::kFloat32 ? "" : fmt::format("-{}", name_of(x.dtype));
  const std::string heads = G == 1 ? "" : fmt::format("G{}-", G);
  return fmt::format("decode/T{}-{}D{}-queries{}{}{}", Tk, heads, x.D, x.queries, type, order);
}

// The number of batch entries, at least 1, whose keys and values take four times the bytes of the
// last-level cache, but at most `most` bytes. Tk counts the keys of all heads of an entry.
Index entries_for(Index Tk, const DecodeCase& x, double most) {
  const double wanted = std::min(most, 4 * static_cast<double>(last_cache_bytes()));
  const Index elements = x.dtype == DType::kQ8 ? x.D / BlockQ8::kNumbers : x.D;  // of a key
  const auto each = static_cast<double>(2 * Tk * elements) * static_cast<double>(size_of(x.dtype));
  return std::max<Index>(1, static_cast<Index>(wanted / each));
}

// Measures the same keys in one array ordered by head, in one ordered by token, and in pages.
void run_decode_in_pages(Session& session, Index page) {
  const Index Tk = std::max<Index>(session.length(16384) / page, 2) * page;
  for (const DecodeCase& x : kPaged) {
    const Index entries = session.is_quick() ? 2 : entries_for(kPagedHeads * Tk, x, 0x1p29);
    const Index H = kPagedHeads * x.queries;
    Problem problem = bench::make_problem(
        {.B = entries, .H = H, .G = kPagedHeads, .Tq = 1, .Tk = Tk, .D = x.D, .dtype = x.dtype});
    const auto measure = [&](const std::string& order) {
      session.share_of_read({decode_name(Tk, kPagedHeads, x, order), {}, session.threads()},
                            problem);
    };
    measure("");
    set_by_token(problem);
    measure("-by-token");
    set_in_pages(problem, page);
    measure(fmt::format("-pages{}", page));
  }
}

}  // namespace

void run_decode(Session& session) {
  if (session.settings().page > 0) return run_decode_in_pages(session, session.settings().page);
  const Index Tk = session.length(16384);
  for (const DecodeCase& x : kDecode) {
    const Index entries = session.is_quick() ? 2 : entries_for(Tk, x, 0x1p30);
    Problem problem =
        make_problem({.B = entries, .H = x.queries, .Tq = 1, .Tk = Tk, .D = x.D, .dtype = x.dtype});
    session.share_of_read({decode_name(Tk, 1, x, ""), x.share, session.threads()}, problem);
    session.rows().back().note = fmt::format("{:.0f} MiB of keys and values; last cache {:.0f} MiB",
                                             session.rows().back().work / 0x1p20,
                                             static_cast<double>(last_cache_bytes()) / 0x1p20);
  }
}

// Measures the overhead of a call, about as small as the smallest example of docs/seeds.md.
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
