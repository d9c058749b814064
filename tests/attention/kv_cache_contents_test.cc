// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/caches.h"
#include "tests/support/errors.h"

// A cache that is made from the contents of another one, or copied from it, gives equal results
// from then on.
namespace qkv::test {
namespace {

constexpr Index kHeads = 4, kKeyHeads = 2, kWidth = 20, kValueWidth = 9;

KvCacheSizes sizes(Index B, DType dtype = DType::kFloat32, Index window = 0) {
  return {.dtype = dtype,
          .B = B,
          .G = kKeyHeads,
          .D = kWidth,
          .E = kValueWidth,
          .page = 16,
          .window = window,
          .queries = 4};
}

void append(KvCache& cache, const std::vector<Index>& entries, Index T, std::uint64_t seed) {
  const auto n = static_cast<Index>(entries.size());
  cache.append(normal({n, kKeyHeads, T, kWidth}, seed, DType::kFloat32),
               normal({n, kKeyHeads, T, kValueWidth}, seed + 1, DType::kFloat32), entries);
}

Tensor result(const KvCache& cache, Index queries) {
  const DType dtype = cache.sizes().dtype;
  const Tensor q = normal({cache.sizes().B, kHeads, queries, kWidth}, 7, dtype);
  Tensor out(dtype, {cache.sizes().B, kHeads, queries, kValueWidth});
  cache.attention(q, {}, {.out = out});
  return out;
}

void expect_same_results(const KvCache& a, const KvCache& b) {
  EXPECT_EQ(a.used_pages(), b.used_pages());
  for (Index entry = 0; entry < a.sizes().B; ++entry) {
    const auto place = static_cast<std::size_t>(entry);
    EXPECT_EQ(a.lengths()[place], b.lengths()[place]);
    EXPECT_EQ(a.first_key(entry), b.first_key(entry));
  }
  for (const Index queries : {1, 3}) EXPECT_TRUE(same_bits(result(a, queries), result(b, queries)));
}

// Expects that copies of `a` give its results bit for bit, also after equal steps, and that steps
// of one cache do not affect another.
void expect_same_future(KvCache a) {
  KvCache b(a.contents()), c(a), d(sizes(1));
  d = c;
  const KvCacheContents before = d.contents();
  for (KvCache* cache : {&b, &c, &d}) expect_same_results(a, *cache);
  for (KvCache* cache : {&a, &b, &c}) {
    append(*cache, {1, 0, 2}, 1, 900);
    append(*cache, {0}, 70, 902);
    cache->truncate(0, cache->lengths()[0] - 3);
    cache->reorder(std::vector<Index>{2, 0, 2});
    append(*cache, {0, 1, 2}, 2, 904);
  }
  for (KvCache* cache : {&b, &c}) expect_same_results(a, *cache);
  expect_equal(d.contents(), before);
}

// In a copy, pages keep their indices, and as many pages are reserved.
TEST(KvCacheContents, ACopyHasTheSamePagesAndRoom) {
  KvCache cache(sizes(2));
  append(cache, {0, 1}, 40, 1);
  cache.truncate(0, 0);
  cache.reserve(20);
  KvCache copied(cache);
  const Tensor q = normal({2, kHeads, 1, kWidth}, 7);
  const Inputs a = cache.inputs(q), b = copied.inputs(q);
  EXPECT_EQ(a.k.shape(), b.k.shape());
  EXPECT_NE(a.k.data(), b.k.data());
  EXPECT_TRUE(same_bits(a.block_tables, b.block_tables));
  const auto hold = copied.hold_pages();
  append(copied, {0}, 16 * 17, 3);
  EXPECT_EQ(copied.used_pages(), 20);
  EXPECT_EQ(cache.used_pages(), 3);
}

TEST(KvCacheContents, ContinueWithTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const Index window : {0, 50}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (window > 0 ? ", window" : ""));
      KvCache cache(sizes(3, dtype, window));
      expect_same_future(KvCache(cache.contents()));  // empty
      append(cache, {0, 1, 2}, 37, 1);
      append(cache, {1}, 120, 3);
      cache.reorder(std::vector<Index>{1, 1, 0});  // pages that two entries share
      cache.truncate(1, cache.lengths()[1] - 4);   // within a page that another entry fills
      cache.truncate(2, 0);                        // pages that are free
      expect_same_future(std::move(cache));
    }
  }
}

TEST(KvCacheContents, HoldSharedPagesOnceAndNothingElse) {
  KvCache cache(sizes(2));
  append(cache, {0, 1}, 40, 1);
  cache.truncate(1, 0);
  cache.reorder(std::vector<Index>{0, 0});
  cache.truncate(0, 33);
  cache.truncate(1, 34);
  const KvCacheContents contents = cache.contents();
  EXPECT_EQ(contents.k_pages.shape(), (Dims{3, 16, kKeyHeads, kWidth}));
  EXPECT_EQ(contents.v_pages.shape(), (Dims{3, 16, kKeyHeads, kValueWidth}));
  const auto table = contents.block_tables.values<Index>();
  EXPECT_EQ(std::vector<Index>(table.begin(), table.end()), (std::vector<Index>{0, 1, 2, 0, 1, 2}));
  // Rows that truncate() removed are 0: only two rows of the last page hold keys.
  const ConstView rest = slice(slice(ConstView(contents.k_pages), 0, 2, 3), 1, 2, 16);
  EXPECT_TRUE(same_bits(rest, Tensor(DType::kFloat32, rest.shape())));
  EXPECT_FALSE(same_bits(slice(slice(ConstView(contents.k_pages), 0, 2, 3), 1, 0, 14),
                         Tensor(DType::kFloat32, rest.shape())));
}

// An entry with dropped keys may have no page: earlier versions wrote such contents after
// truncate() with a window.
TEST(KvCacheContents, OfAWindowWithoutPages) {
  KvCacheContents without{.sizes = sizes(1, DType::kFloat32, 20),
                          .k_pages = Tensor(DType::kFloat32, {1, 16, kKeyHeads, kWidth}),
                          .v_pages = Tensor(DType::kFloat32, {1, 16, kKeyHeads, kValueWidth}),
                          .block_tables = Tensor(DType::kInt64, {1, 1}),
                          .lengths = Tensor(DType::kInt64, {1}),
                          .first_keys = Tensor(DType::kInt64, {1})};
  without.block_tables.values<Index>()[0] = -1;
  without.lengths.values<Index>()[0] = without.first_keys.values<Index>()[0] = 16;
  KvCache cache(without);
  EXPECT_EQ(cache.used_pages(), 0);
  expect_equal(cache.contents(), without);
  KvCache again(cache.contents());
  EXPECT_EQ(again.first_key(0), 16);
  const Tensor q = normal({1, kHeads, 1, kWidth}, 7);
  Tensor a(DType::kFloat32, {1, kHeads, 1, kValueWidth}), b(DType::kFloat32, a.shape());
  // No key is attended to, but the tables must hold pages that exist.
  attention(again.inputs(q), {.masks = {KeyLengths{std::vector<Index>{0}}}}, {.out = a});
  EXPECT_TRUE(same_bits(a, b));
  for (KvCache* one : {&cache, &again}) append(*one, {0}, 30, 3);
  EXPECT_TRUE(same_bits(result(cache, 1), result(again, 1)));
}

// ---- wrong arrays -------------------------------------------------------------------------------

// Returns the error for contents of two entries, with 40 keys in 3 pages and 20 in 2, after
// change(contents).
template <class Change>
std::string error_after(const Change& change, Index window = 0) {
  KvCache cache(sizes(2, DType::kFloat32, window));
  append(cache, {0}, 40, 1);
  append(cache, {1}, 20, 3);
  KvCacheContents contents = cache.contents();
  change(contents);
  return message_of([&] { const KvCache again(contents); });
}

void set(Tensor& array, std::size_t place, Index value) { array.values<Index>()[place] = value; }

TEST(KvCacheContents, EveryFieldIsChecked) {
  using C = KvCacheContents;
  EXPECT_EQ(error_after([](C&) {}), "");
  EXPECT_EQ(error_after([](C& c) { c.sizes.page = 24; }),
            "KvCache: sizes.page must be a multiple of 16, got 24");
  EXPECT_EQ(error_after([](C& c) { c.lengths = {}; }),
            "KvCache: lengths must be int64 [B] = [2], got none");
  EXPECT_EQ(error_after([](C& c) { c.first_keys = Tensor(DType::kInt32, {2}); }),
            "KvCache: first_keys must be int64 [B] = [2], got int32 [2]");
  EXPECT_EQ(error_after([](C& c) { set(c.lengths, 1, -1); }),
            "KvCache: lengths must be 0 or more, got -1 of entry 1");
  EXPECT_EQ(error_after([](C& c) { set(c.lengths, 0, Index{1} << 62); }),
            "KvCache: block_tables must be int64 [B,pages] = [2,288230376151711744], got int64 "
            "[2,3]");
  EXPECT_EQ(error_after([](C& c) { set(c.lengths, 0, 32); }),
            "KvCache: block_tables must be int64 [B,pages] = [2,2], got int64 [2,3]");
  EXPECT_EQ(error_after([](C& c) { set(c.first_keys, 0, 16); }),
            "KvCache: first_keys must be 0 without a window, got 16 of entry 0 of 40 keys");
  EXPECT_EQ(error_after([](C& c) { set(c.first_keys, 0, 8); }, 20),
            "KvCache: first_keys must be a multiple of the page, 16, and at most the length, got "
            "8 of entry 0 of 40 keys");
  EXPECT_EQ(error_after([](C& c) { set(c.first_keys, 1, 32); }, 20),
            "KvCache: first_keys must be a multiple of the page, 16, and at most the length, got "
            "32 of entry 1 of 20 keys");
  EXPECT_EQ(error_after([](C& c) { set(c.first_keys, 1, -16); }, 20),
            "KvCache: first_keys must be a multiple of the page, 16, and at most the length, got "
            "-16 of entry 1 of 20 keys");
  EXPECT_EQ(
      error_after([](C& c) { c.sizes.window = 1; }),
      "KvCache: first_keys must be late enough that at most 2 pages remain, as many as the window "
      "needs, got 0 of entry 0 of 40 keys");
  // A huge page size allocates nothing, since the missing page is an error.
  EXPECT_EQ(error_after([](C& c) {
              c.sizes.page = Index{1} << 40;
              c.block_tables = Tensor(DType::kInt64, {2, 1});
              c.k_pages = Tensor(DType::kFloat32, {0, Index{1} << 40, 2, 20});
              c.v_pages = Tensor(DType::kFloat32, {0, Index{1} << 40, 2, 9});
            }),
            "KvCache: k_pages must have a page for block_tables, got none");
  EXPECT_EQ(error_after([](C& c) { c.k_pages = Tensor(DType::kFloat64, c.k_pages.shape()); }),
            "KvCache: k_pages must be float32 [pages,page,G,D] = [5,16,2,20], got float64 "
            "[5,16,2,20]");
  EXPECT_EQ(error_after([](C& c) {
              c.v_pages = Tensor(DType::kFloat32, {4, 16, 2, 9});
            }),
            "KvCache: v_pages must be float32 [pages,page,G,E] = [5,16,2,9], got float32 "
            "[4,16,2,9]");
  EXPECT_EQ(error_after([](C& c) { set(c.block_tables, 2, 5); }),
            "KvCache: block_tables must name one of 5 pages, got 5 for page 2 of entry 0");
  EXPECT_EQ(error_after([](C& c) { set(c.block_tables, 0, -1); }),
            "KvCache: block_tables must name one of 5 pages, got -1 for page 0 of entry 0");
  EXPECT_EQ(error_after([](C& c) { set(c.block_tables, 5, 0); }),
            "KvCache: block_tables must be -1 where there is no page, got 0 for page 2 of entry 1");
  EXPECT_EQ(error_after([](C& c) { set(c.block_tables, 2, 1); }),
            "KvCache: block_tables must name every page, but no entry names page 2");
}

// ---- pages that stay where they are -------------------------------------------------------------

TEST(KvCache, HeldPagesDoNotMove) {
  KvCache cache(sizes(1));
  cache.reserve(2);
  const Tensor q = normal({1, kHeads, 1, kWidth}, 7);
  const void* const data = cache.inputs(q).k.data();
  std::shared_ptr<const void> hold = cache.hold_pages();
  append(cache, {0}, 32, 1);
  EXPECT_EQ(cache.inputs(q).k.data(), data);
  const auto more = [&] { append(cache, {0}, 1, 3); };
  EXPECT_EQ(message_of(more),
            "KvCache::append: the pages cannot move while held: room for 0 more, 1 needed; call "
            "reserve() before holding them");
  EXPECT_EQ(message_of([&] { cache.reserve(3); }),
            "KvCache::reserve: the pages cannot move while held: room for 0 more, 1 needed; call "
            "reserve() before holding them");
  EXPECT_EQ(cache.lengths()[0], 32);
  hold.reset();
  more();
  EXPECT_EQ(cache.lengths()[0], 33);

  // Held pages outlive the cache.
  hold = cache.hold_pages();
  const ConstView k = cache.inputs(q).k;
  const Tensor before = contiguous(k);
  cache = KvCache(sizes(1));
  EXPECT_TRUE(same_bits(k, before));
  EXPECT_EQ(message_of([&] { cache.reserve(-1); }),
            "KvCache::reserve: pages must be 0 or more, got -1");
}

}  // namespace
}  // namespace qkv::test
