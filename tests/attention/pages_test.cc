// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "core/storage.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"

// Results for keys and values in pages are bit-identical with those for contiguous keys.
namespace qkv::test {
namespace {

// Lengths on both sides of the ends of pages, panels and chunks, and no key at all.
const std::vector<Index> kLengths{513, 0, 17, 600, 64};
constexpr Index kEntries = 5;
constexpr Index kMost = 600;
constexpr Index kHeads = 4, kKeyHeads = 2, kWidth = 20, kValueWidth = 9;

void fill_with_nan(const Tensor& x) {
  core::visit_dtype(x.dtype(), [&]<class Stored>(Stored*) {
    if constexpr (is_real(dtype_of<Stored>)) {
      auto* values = static_cast<Stored*>(const_cast<void*>(ConstView(x.view()).data()));
      std::fill_n(values, x.element_count(), core::from_accumulator<Stored>(std::nan("")));
    }
  });
}

struct Paged {
  Tensor k, v;  // [pages,page,G,.]; rows without a key are NaN
  std::vector<std::int32_t> tables;
  Index most = 0;

  ConstView table() const { return {tables.data(), DType::kInt32, {kEntries, most}, {most, 1}}; }
};

// The first `rows` rows of a page of [pages,page,G,C], as [1,G,rows,C].
template <class AnyView>
AnyView page_rows(const AnyView& pages, Index page, Index rows) {
  const AnyView one = permute(slice(pages, 0, page, page + 1), {0, 2, 1, 3});
  return slice(one, 2, 0, rows);
}
// Rows begin .. end - 1 of entry b of contiguous keys [B,G,T,C], as [1,G,rows,C].
template <class AnyView>
AnyView flat_rows(const AnyView& flat, Index b, Index begin, Index end) {
  return slice(slice(flat, 0, b, b + 1), 2, begin, end);
}

// Stores keys in pages out of order; table entries beyond an entry's keys are -7, which is no page.
// Three pages stay unused.
Paged in_pages(const Tensor& k, const Tensor& v, Index page) {
  Paged to;
  to.most = kMost / page + 2;
  to.tables.assign(static_cast<std::size_t>(kEntries * to.most), -7);
  Index pages = 3;
  for (const Index length : kLengths) pages += (length + page - 1) / page;
  to.k = Tensor(k.dtype(), {pages, page, kKeyHeads, kWidth});
  to.v = Tensor(v.dtype(), {pages, page, kKeyHeads, kValueWidth});
  fill_with_nan(to.k);
  fill_with_nan(to.v);
  Index next = 0;
  Index step = 7;  // visits every page once
  while (std::gcd(step, pages) != 1) ++step;
  for (Index b = 0; b < kEntries; ++b) {
    const Index length = kLengths[static_cast<std::size_t>(b)];
    for (Index j = 0; j < length; j += page, ++next) {
      const Index number = next * step % pages;
      const Index end = std::min(length, j + page);
      to.tables[static_cast<std::size_t>(b * to.most + j / page)] =
          static_cast<std::int32_t>(number);
      copy(flat_rows(k.view(), b, j, end), page_rows(to.k.view(), number, end - j));
      copy(flat_rows(v.view(), b, j, end), page_rows(to.v.view(), number, end - j));
    }
  }
  return to;
}

struct Flat {
  Tensor q, k, v;
};
Flat seeded(Index Tq, DType queries, DType keys) {
  return {normal({kEntries, kHeads, Tq, kWidth}, 51, queries),
          normal({kEntries, kKeyHeads, kMost, kWidth}, 52, keys),
          normal({kEntries, kKeyHeads, kMost, kValueWidth}, 53, keys)};
}

struct RowResults {
  Tensor out, lse, row_max;
};
RowResults run(const Inputs& inputs, const Options& options, const std::string& path, int threads) {
  Context context = context_on(path, threads);
  const Dims rows{kEntries, kHeads, inputs.q.size(2)};
  const DType sums = accumulator_of(inputs.q.dtype());
  RowResults x{Tensor(inputs.q.dtype(), {rows[0], rows[1], rows[2], kValueWidth}),
               Tensor(sums, rows), Tensor(sums, rows)};
  attention(inputs, options, {.out = x.out, .lse = x.lse, .row_max = x.row_max}, context);
  return x;
}

// The options with which a call on contiguous keys gives equal results: each entry's length and
// diagonal are arguments.
Options written_out(const Options& options, const std::vector<Index>& offsets) {
  Options flat = options;
  flat.masks.emplace_back(KeyLengths{kLengths});
  if (std::holds_alternative<BottomRight>(flat.diagonal)) flat.diagonal = Offsets{offsets};
  return flat;
}

RowResults flat_result(const Flat& x, const Options& options, const std::string& path) {
  std::vector<Index> offsets;
  for (const Index length : kLengths) offsets.push_back(length - x.q.size(2));
  return run({x.q, x.k, x.v}, written_out(options, offsets), path, 1);
}

void expect_equal(const Flat& x, const std::vector<Index>& page_sizes, const Options& options,
                  const std::string& path, int threads) {
  const RowResults flat = flat_result(x, options, path);
  for (const Index page : page_sizes) {
    SCOPED_TRACE(page);
    const Paged pages = in_pages(x.k, x.v, page);
    const Inputs inputs{.q = x.q,
                        .k = pages.k,
                        .v = pages.v,
                        .block_tables = pages.table(),
                        .context_lens = kLengths};
    const RowResults paged = run(inputs, options, path, threads);
    EXPECT_TRUE(same_bits(paged.out, flat.out));
    EXPECT_TRUE(same_bits(paged.lse, flat.lse));
    EXPECT_TRUE(same_bits(paged.row_max, flat.row_max));
  }
}

// For few queries a path reads pages in place; for more it copies a chunk; for many it first packs
// all keys.
TEST(Pages, EqualFlatKeysOnEveryPath) {
  const Tensor slopes = normal({kHeads}, 54);
  const Tensor sinks = normal({kHeads}, 55);
  const Options options{.softcap = 8,
                        .alibi = slopes,
                        .masks = {Causal{}, Window{400, -1}},
                        .sinks = sinks,
                        .dropout = {0.2, 3}};
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    for (const Index queries : {1, 5, 12, 70}) {
      SCOPED_TRACE(queries);
      const Flat x = seeded(queries, DType::kFloat32, DType::kFloat32);
      expect_equal(x, {16, 32, 64, 256}, {}, path, 2);
      expect_equal(x, {16, 48, 128}, options, path, 1);
    }
  }
}

TEST(Pages, EqualFlatKeysOfEveryDTypeOnEveryPath) {
  constexpr DType kTypes[][2] = {{DType::kFloat64, DType::kFloat64},
                                 {DType::kBFloat16, DType::kBFloat16},
                                 {DType::kFloat16, DType::kFloat16},
                                 {DType::kFloat32, DType::kBFloat16},
                                 {DType::kFloat32, DType::kFloat16}};
  for (const auto& [queries, keys] : kTypes) {
    SCOPED_TRACE(std::string(qkv::name_of(queries)) + " and " + std::string(qkv::name_of(keys)));
    for (const Index rows : {2, 40}) {
      const Flat x = seeded(rows, queries, keys);
      for (const std::string& path : all_paths()) {
        SCOPED_TRACE(path);
        expect_equal(x, {16}, {.masks = {Causal{}}}, path, 1);
      }
    }
  }
}

// Tests every score, alone and after QK-norm and rotary positions.
TEST(Pages, EqualFlatKeysForEveryScoreOnEveryPath) {
  const ScoreSizes sizes{.H = kHeads, .Dq = kWidth, .Dk = kWidth, .U = 6};
  const Tensor gain = normal(Dims(kWidth), 56);
  for (const ScoreKind kind : kScoreKinds) {
    SCOPED_TRACE(name_of(kind));
    const SeededScore score(kind, sizes, DType::kFloat32);
    for (const Index queries : {2, 30}) {
      SCOPED_TRACE(queries);
      const Flat x = seeded(queries, DType::kFloat32, DType::kFloat32);
      for (const std::string& path : all_paths(kind)) {
        SCOPED_TRACE(path);
        if (queries == 2) {
          expect_equal(x, {16, 64}, {.score = score.score(), .masks = {Causal{}}}, path, 1);
        } else {
          const Options transformed{
              .qk_norm = QkNorm{.q = gain, .k = gain}, .rotary = Rotary{}, .score = score.score()};
          expect_equal(x, {32}, transformed, path, 2);
        }
      }
    }
  }
}

// Projections have deviations of 60 and more, so that the exponentials of most rows have separate
// powers of two.
TEST(Pages, EqualFlatKeysForWideAdditiveRangesOnEveryPath) {
  const SeededScore score(ScoreKind::kAdditive,
                          {.H = kHeads, .Dq = kWidth, .Dk = kWidth, .U = 6, .projected = 60},
                          DType::kFloat32);
  const Flat x = seeded(3, DType::kFloat32, DType::kFloat32);
  for (const std::string& path : all_paths(ScoreKind::kAdditive)) {
    SCOPED_TRACE(path);
    expect_equal(x, {32}, {.score = score.score()}, path, 1);
  }
}

// Some keys and values are NaN or infinite: both unmasked and masked ones.
TEST(Pages, EqualFlatKeysWithNonFiniteValuesOnEveryPath) {
  for (const Index queries : {2, 12, 60}) {
    Flat x = seeded(queries, DType::kFloat32, DType::kFloat32);
    const auto spoil = [](Tensor& of, Index b, Index j, float value) {
      const Index width = of.size(3);
      of.values<float>()[static_cast<std::size_t>((b * kKeyHeads * kMost + j) * width)] = value;
    };
    spoil(x.v, 0, 500, INFINITY);
    spoil(x.v, 3, 5, NAN);  // outside all windows
    spoil(x.k, 3, 20, NAN);
    spoil(x.v, 3, 590, -INFINITY);
    spoil(x.v, 4, 63, NAN);
    spoil(x.k, 2, 3, INFINITY);
    for (const std::string& path : all_paths()) {
      SCOPED_TRACE(path);
      expect_equal(x, {16}, {.masks = {Causal{}, Window{200, -1}}}, path, 1);
    }
  }
}

// Pages may be strided views, in which neither channels nor heads are contiguous.
TEST(Pages, MayBeStridedOnEveryPath) {
  for (const Index queries : {2, 40}) {
    const Flat x = seeded(queries, DType::kFloat32, DType::kFloat32);
    Paged pages = in_pages(x.k, x.v, 32);
    // Keys and values lie in one array, [pages,G,C,page], seen as [pages,page,G,.].
    const Index count = pages.k.size(0);
    Tensor both(DType::kFloat32, {count, kKeyHeads, kWidth + kValueWidth, 32});
    fill_with_nan(both);
    const View transposed = permute(both.view(), {0, 3, 1, 2});
    const View k = slice(transposed, 3, 0, kWidth);
    const View v = slice(transposed, 3, kWidth, kWidth + kValueWidth);
    copy(pages.k, k);
    copy(pages.v, v);
    for (const std::string& path : all_paths()) {
      SCOPED_TRACE(path);
      const Inputs strided{
          .q = x.q, .k = k, .v = v, .block_tables = pages.table(), .context_lens = kLengths};
      const Inputs contiguous_pages{.q = x.q,
                                    .k = pages.k,
                                    .v = pages.v,
                                    .block_tables = pages.table(),
                                    .context_lens = kLengths};
      const RowResults a = run(strided, {.masks = {Causal{}}}, path, 1);
      const RowResults b = run(contiguous_pages, {.masks = {Causal{}}}, path, 1);
      EXPECT_TRUE(same_bits(a.out, b.out));
      EXPECT_TRUE(same_bits(a.lse, b.lse));
    }
  }
}

// Entries share a page, and one entry has a page several times.
TEST(Pages, MayBeSharedOnEveryPath) {
  constexpr Index kPage = 16;
  const Tensor k = normal({3, kPage, kKeyHeads, kWidth}, 61);
  const Tensor v = normal({3, kPage, kKeyHeads, kValueWidth}, 62);
  const std::vector<std::int64_t> tables{2, 0, 2, 1, 2, 0, 1, 1};
  const std::vector<std::int32_t> lengths{60, 41};
  const Tensor q = normal({2, kHeads, 1, kWidth}, 63);
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    Context context = context_on(path);
    Tensor out(DType::kFloat32, {2, kHeads, 1, kValueWidth});
    const ConstView table(tables.data(), DType::kInt64, {2, 4}, {4, 1});
    attention({.q = q, .k = k, .v = v, .block_tables = table, .context_lens = lengths}, {},
              {.out = out}, context);
    for (Index b = 0; b < 2; ++b) {
      const Index length = lengths[static_cast<std::size_t>(b)];
      Tensor flat_k(DType::kFloat32, {1, kKeyHeads, length, kWidth});
      Tensor flat_v(DType::kFloat32, {1, kKeyHeads, length, kValueWidth});
      for (Index j = 0; j < length; j += kPage) {
        const Index rows = std::min(kPage, length - j);
        const Index page = tables[static_cast<std::size_t>(b * 4 + j / kPage)];
        copy(page_rows(k.view(), page, rows), flat_rows(flat_k.view(), 0, j, j + rows));
        copy(page_rows(v.view(), page, rows), flat_rows(flat_v.view(), 0, j, j + rows));
      }
      Tensor alone(DType::kFloat32, {1, kHeads, 1, kValueWidth});
      attention({slice(ConstView(q.view()), 0, b, b + 1), flat_k, flat_v}, {}, {.out = alone},
                context);
      EXPECT_TRUE(same_bits(slice(ConstView(out.view()), 0, b, b + 1), alone));
    }
  }
}

// A plan reads tables and lengths anew in each run: the next token may begin a page.
TEST(Pages, PlansFollowLengthsAndTables) {
  const Flat x = seeded(1, DType::kFloat32, DType::kFloat32);
  Paged pages = in_pages(x.k, x.v, 16);
  std::vector<Index> lengths{16, 0, 3, 40, 1};
  const Inputs inputs{
      .q = x.q, .k = pages.k, .v = pages.v, .block_tables = pages.table(), .context_lens = lengths};
  Context context;
  Plan plan(inputs, {}, context);
  EXPECT_EQ(plan.backward_path(), "");
  Tensor out(DType::kFloat32, {kEntries, kHeads, 1, kValueWidth});
  for (int n = 0; n < 3; ++n) {
    lengths = n == 1 ? kLengths : std::vector<Index>{17, 0, 4, 41, 2};
    if (n == 2) std::swap(pages.tables[0], pages.tables[1]);
    plan.run(inputs, {.out = out});
    Tensor now(DType::kFloat32, out.shape());
    attention(inputs, {}, {.out = now});
    EXPECT_TRUE(same_bits(out, now));
  }
  EXPECT_THROW(plan.backward(inputs, {}, {}, {}), Error);
}

}  // namespace
}  // namespace qkv::test
