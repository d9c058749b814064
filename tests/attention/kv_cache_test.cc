// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/errors.h"

// Results of a cache are bit-identical with those of attention() over all keys of an entry in one
// array.
namespace qkv::test {
namespace {

constexpr Index kHeads = 4, kKeyHeads = 2, kWidth = 20, kValueWidth = 9;

KvCacheSizes sizes(Index B, Index page, Index window = 0) {
  return {.B = B,
          .G = kKeyHeads,
          .D = kWidth,
          .E = kValueWidth,
          .page = page,
          .window = window,
          .queries = 4};
}

// The keys [1,G,Tk,D] and values [1,G,Tk,E] that were appended to an entry and not truncated.
struct Entry {
  Tensor k{DType::kFloat32, {1, kKeyHeads, 0, kWidth}};
  Tensor v{DType::kFloat32, {1, kKeyHeads, 0, kValueWidth}};

  Index length() const { return k.size(2); }
  void append(const ConstView& keys, const ConstView& values) {
    k = joined(k, keys);
    v = joined(v, values);
  }
  void truncate(Index length) {
    k = contiguous(slice(ConstView(k), 2, 0, length));
    v = contiguous(slice(ConstView(v), 2, 0, length));
  }

 private:
  static Tensor joined(const ConstView& a, const ConstView& b) {
    Tensor both(a.dtype(), {1, kKeyHeads, a.size(2) + b.size(2), a.size(3)});
    copy(a, slice(both, 2, 0, a.size(2)));
    copy(b, slice(both, 2, a.size(2), both.size(2)));
    return both;
  }
};

ConstView entry_of(const ConstView& x, Index n) { return slice(x, 0, n, n + 1); }

// A cache, and each entry's keys and values in one array each.
struct CacheAndArrays {
  KvCache cache;
  std::vector<Entry> flat;
  std::uint64_t seed = 100;

  explicit CacheAndArrays(const KvCacheSizes& of)
      : cache(of), flat(static_cast<std::size_t>(of.B)) {}
  void append(const std::vector<Index>& entries, Index T) {
    const auto n = static_cast<Index>(entries.size());
    const DType dtype = cache.sizes().dtype;
    const Tensor k = normal({n, kKeyHeads, T, kWidth}, ++seed, dtype);
    const Tensor v = normal({n, kKeyHeads, T, kValueWidth}, ++seed, dtype);
    cache.append(k, v, entries);
    for (Index b = 0; b < n; ++b) {
      flat[static_cast<std::size_t>(entries[static_cast<std::size_t>(b)])].append(entry_of(k, b),
                                                                                  entry_of(v, b));
    }
  }
  void truncate(Index entry, Index length) {
    cache.truncate(entry, length);
    flat[static_cast<std::size_t>(entry)].truncate(length);
  }
  void reorder(const std::vector<Index>& from) {
    cache.reorder(from);
    std::vector<Entry> now(flat.size());
    for (std::size_t b = 0; b < now.size(); ++b) {
      const Entry& old = flat[static_cast<std::size_t>(from[b])];
      now[b].append(old.k, old.v);
    }
    flat = std::move(now);
  }

  void expect_equal(Index queries, const std::string& path, const Options& options = {}) const {
    const Tensor q = normal({cache.sizes().B, kHeads, queries, kWidth}, 7);
    Context context = context_on(path);
    Tensor out(DType::kFloat32, {q.size(0), kHeads, queries, kValueWidth});
    cache.attention(q, options, {.out = out}, context);
    Options all = options;
    if (const Index window = cache.sizes().window; window > 0) {
      all.masks.emplace_back(Window{window - 1, -1});
    }
    for (Index b = 0; b < q.size(0); ++b) {
      const Entry& x = flat[static_cast<std::size_t>(b)];
      ASSERT_EQ(cache.lengths()[static_cast<std::size_t>(b)], x.length());
      Tensor alone(DType::kFloat32, {1, kHeads, queries, kValueWidth});
      attention({entry_of(q, b), x.k, x.v}, all, {.out = alone}, context);
      EXPECT_TRUE(same_bits(entry_of(out, b), alone)) << path << ", entry " << b;
    }
  }
};

TEST(KvCache, EqualsKeysInOnePieceOnEveryPath) {
  for (const std::string& path : all_paths()) {
    CacheAndArrays x(sizes(3, 32));
    x.expect_equal(1, path);  // no keys
    x.append({0, 1, 2}, 70);
    x.expect_equal(1, path);
    x.append({2, 0}, 1);
    x.append({1}, 600);
    for (int step = 0; step < 3; ++step) x.append({0, 1, 2}, 1);
    x.expect_equal(1, path);
    x.expect_equal(30, path, {.masks = {Causal{}}});
  }
}

TEST(KvCache, RoundsToItsDType) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    KvCacheSizes of = sizes(1, 16);
    of.dtype = dtype;
    KvCache cache(of);
    const Tensor k = normal({1, kKeyHeads, 37, kWidth}, 1, DType::kFloat64);
    const Tensor v = normal({1, kKeyHeads, 37, kValueWidth}, 2, DType::kFloat64);
    cache.append(k, v);
    const Tensor q = normal({1, kHeads, 2, kWidth}, 3, dtype);
    Tensor out(dtype, {1, kHeads, 2, kValueWidth});
    Tensor flat(dtype, out.shape());
    cache.attention(q, {}, {.out = out});
    attention({q, convert(k, dtype), convert(v, dtype)}, {}, {.out = flat});
    EXPECT_TRUE(same_bits(out, flat));
  }
}

// Truncated keys, such as rejected draft tokens, have no effect on later results.
TEST(KvCache, TruncatesAndGivesPagesBack) {
  CacheAndArrays x(sizes(2, 16));
  x.append({0, 1}, 40);
  EXPECT_EQ(x.cache.used_pages(), 6);
  x.truncate(0, 17);
  EXPECT_EQ(x.cache.used_pages(), 5);
  x.truncate(1, 32);
  EXPECT_EQ(x.cache.used_pages(), 4);
  x.append({1, 0}, 21);
  x.expect_equal(2, "reference");
  x.truncate(0, 0);
  x.append({0}, 3);
  x.expect_equal(1, "reference");
  const std::size_t bytes = x.cache.bytes();
  x.cache.reset();
  EXPECT_EQ(x.cache.used_pages(), 0);
  EXPECT_EQ(x.cache.bytes(), bytes);
}

// Hypotheses share pages until one of them writes into a shared one.
TEST(KvCache, BeamsSharePages) {
  CacheAndArrays x(sizes(3, 16));
  x.append({0, 1, 2}, 37);
  x.append({1}, 2);
  x.reorder({1, 1, 0});
  EXPECT_EQ(x.cache.used_pages(), 6);  // 3 of the old entry 1, 3 of the old entry 0
  x.expect_equal(1, "reference");
  x.append({0, 1, 2}, 1);
  EXPECT_EQ(x.cache.used_pages(), 7);
  x.expect_equal(1, "reference");
  x.append({1}, 100);
  x.reorder({2, 1, 1});
  x.truncate(2, 35);
  x.append({0, 1, 2}, 5);
  x.expect_equal(3, "reference");
  x.reorder({0, 0, 0});
  x.cache.reset();
  EXPECT_EQ(x.cache.used_pages(), 0);
}

TEST(KvCache, WindowKeepsTheLastKeysOnEveryPath) {
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    CacheAndArrays x(sizes(2, 16, 50));
    Index most = 0;
    for (int step = 0; step < 40; ++step) {
      x.append({0, 1}, 4);
      if (step % 3 == 0) x.append({1}, 37);
      if (step % 5 == 0) x.expect_equal(1, path);
      if (step % 7 == 0) x.expect_equal(4, path, {.masks = {Causal{}}});
      most = std::max(most, x.cache.used_pages());
    }
    x.append({0, 1}, 1500);  // most of them are never stored
    x.expect_equal(4, path);
    // The window's 50 keys and queries - 1 = 3 more reach into at most 5 pages.
    EXPECT_LE(most, 2 * 5);
    EXPECT_EQ(x.cache.first_key(0), 99 * 16);  // of 1660 keys in 104 pages, the last 5 are kept
    x.reorder({1, 1});
    x.append({0}, 1);
    x.expect_equal(2, path);
  }
}

// With a window, truncate() succeeds exactly if the query at the last remaining key still has all
// keys that it attends to. A length of at least L - queries is always valid, where L is the longest
// length that the entry has had.
TEST(KvCache, TruncatesIfTheLastKeyKeepsItsWindow) {
  std::mt19937 random(5);
  const auto below = [&](Index n) {
    return static_cast<Index>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 300; ++round) {
    KvCacheSizes of = sizes(1, 16, 1 + below(60));
    of.queries = 1 + below(20);
    CacheAndArrays x(of);
    Index longest = 0;
    for (int step = 0; step < 8; ++step) {
      x.append({0}, 1 + below(step == 3 ? 200 : of.queries));
      const Index most = x.cache.lengths()[0];
      longest = std::max(longest, most);
      const Index first = x.cache.first_key(0);
      const Index length = std::max<Index>(1, most - below(2 * of.queries + 40));
      const bool has_its_window = first == 0 || length - of.window >= first;
      const std::string refusal = message_of([&] { x.cache.truncate(0, length); });
      ASSERT_EQ(refusal.empty(), has_its_window || length == most) << refusal;
      ASSERT_TRUE(refusal.empty() || length < longest - of.queries) << refusal;
      EXPECT_EQ(x.cache.lengths()[0], refusal.empty() ? length : most);
      if (refusal.empty()) x.flat[0].truncate(length);
      x.expect_equal(1, "reference");
      const Index added = below(of.queries);
      x.append({0}, added);
      longest = std::max(longest, x.cache.lengths()[0]);
      x.expect_equal(added + 1, "reference");
    }
  }
}

// ---- calls that are rejected ------------------------------------------------------------------

TEST(KvCache, RejectsWrongSizes) {
  const auto error = [](const KvCacheSizes& of) { return message_of([&] { KvCache cache(of); }); };
  EXPECT_EQ(error(sizes(1, 24)), "KvCache: sizes.page must be a multiple of 16, got 24");
  EXPECT_THROW(KvCache(sizes(Index{1} << 62, 16)), std::bad_alloc);
  EXPECT_EQ(error(sizes(0, 16)), "KvCache: sizes.B must be 1 or more, got 0");
  EXPECT_EQ(error(sizes(1, 16, -1)), "KvCache: sizes.window must be in 0 to 2^53, got -1");
  EXPECT_EQ(error(sizes(1, 16, (Index{1} << 53) + 1)),
            "KvCache: sizes.window must be in 0 to 2^53, got 9007199254740993");
  KvCacheSizes wide = sizes(1, 16, Index{1} << 53);
  wide.queries = Index{1} << 53;
  EXPECT_EQ(error(wide), "");
  for (const Index queries : {Index{0}, wide.queries + 1}) {
    wide.queries = queries;
    EXPECT_EQ(error(wide),
              "KvCache: sizes.queries must be in 1 to 2^53, got " + std::to_string(queries));
  }
  KvCacheSizes of = sizes(1, 16);
  of.dtype = DType::kInt32;
  EXPECT_EQ(error(of),
            "KvCache: sizes.dtype must be float32, float64, bfloat16, float16 or q8, got int32");
  of = sizes(1, Index{1} << 40);
  of.D = Index{1} << 21;
  EXPECT_EQ(error(of),
            "KvCache: sizes make pages [page,G,.] = [1099511627776,2,2097152] of more than 2^63 "
            "bytes");
}

// An entry that has dropped no keys accepts any number of queries. Therefore attention() rejects
// this call, not the cache.
TEST(KvCache, RejectsTooManyQueriesByTheRuleOfAttention) {
  const KvCache cache({.B = 1, .G = 1, .D = 1, .E = 1, .page = 16, .window = 20});
  float x = 0;
  const Dims shape{1, 1, std::numeric_limits<Index>::max(), 1}, strides{0, 0, 0, 1};
  EXPECT_EQ(error_of([&] {
              cache.attention(ConstView(&x, shape, strides), {}, {.out = View(&x, shape, strides)});
            }),
            "attention: inputs must have fewer than 2^55 rows times channels, got [B,H,T,D] = "
            "[1,1,9223372036854775807,1]");
}

TEST(KvCache, QueriesMustHaveItsBatchSize) {
  const KvCache cache(sizes(2, 16));
  for (const Dims& shape : {Dims{1, 2, 1, kWidth}, Dims{2, 1, kWidth}}) {
    const Tensor q = normal(shape, 1);
    EXPECT_EQ(error_of([&] { cache.attention(q, {}, {}); }),
              "KvCache::attention: q must be [B,H,Tq,D] with B = 2, the entries of the cache, got "
              "float32 " +
                  to_string(shape));
  }
}

TEST(KvCache, RejectedCallsChangeNothing) {
  CacheAndArrays x(sizes(2, 16, 20));
  x.append({0, 1}, 3);
  x.append({0}, 60);
  KvCache& cache = x.cache;
  const Tensor k = normal({2, kKeyHeads, 1, kWidth}, 1);
  const Tensor v = normal({2, kKeyHeads, 1, kValueWidth}, 2);
  const std::vector<Index> twice{1, 1}, outside{0, 2}, short_order{0};
  EXPECT_EQ(message_of([&] { cache.append(v, v); }),
            "KvCache::append: k must have the shape [n,G,T,D] = [2,2,1,20], got float32 [2,2,1,9]");
  EXPECT_EQ(message_of([&] { cache.append(k, {}); }), "KvCache::append: v is absent");
  EXPECT_EQ(message_of([&] { cache.append(k, v, twice); }),
            "KvCache::append: entries must be different, got 1 twice");
  EXPECT_EQ(message_of([&] { cache.append(k, v, outside); }),
            "KvCache::append: entries must be in 0 to B-1 = 1, got 2");
  // Two pages of the cache itself, as [n,G,T,D].
  const ConstView in_cache = permute(slice(cache.inputs(k).k, 0, 0, 2), {0, 2, 1, 3});
  EXPECT_EQ(message_of([&] { cache.append(slice(in_cache, 2, 0, 1), v); }),
            "KvCache::append: k must not lie in the cache");
  EXPECT_EQ(message_of([&] { cache.truncate(1, 4); }),
            "KvCache::truncate: length must be in 0 to 3, the keys of entry 1, got 4");
  for (const Index length : {5, 17, 35}) {
    EXPECT_EQ(
        message_of([&] { cache.truncate(0, length); }),
        "KvCache::truncate: length must be 0 or in 36 to 63: of the 63 keys of entry 0 those "
        "before key 16 are dropped and a query attends to the last 20, so that at most 27 can "
        "be removed; got " +
            std::to_string(length));
  }
  EXPECT_EQ(message_of([&] { cache.reorder(short_order); }),
            "KvCache::reorder: from must name an entry for each of B = 2, got 1");
  EXPECT_EQ(message_of([&] { cache.reorder(outside); }),
            "KvCache::reorder: from must be in 0 to B-1 = 1, got 2");
  x.expect_equal(1, "reference");
}

TEST(KvCache, RejectsQueriesWhoseKeysAreGone) {
  CacheAndArrays x(sizes(2, 16, 20));
  x.append({0, 1}, 63);
  Tensor out(DType::kFloat32, {2, kHeads, 30, kValueWidth});
  const Tensor q = normal({2, kHeads, 30, kWidth}, 1);
  EXPECT_EQ(message_of([&] { x.cache.attention(q, {}, {.out = out}); }),
            "KvCache::attention: q has Tq = 30, whose window of 20 keys begins before key 16, the "
            "first that entry 0 of 63 keys still has; the cache is made for queries = 4");
  EXPECT_EQ(message_of([&] { x.cache.attention(q, {.diagonal = TopLeft{}}, {.out = out}); }),
            "KvCache::attention: options.diagonal must be the default, BottomRight: a cache with a "
            "window "
            "keeps only the last keys");
  // A query before the last key would attend to keys that have been dropped.
  x.truncate(0, 36);
  const ConstView two = slice(q.view(), 2, 0, 2);
  EXPECT_EQ(
      message_of([&] { x.cache.attention(two, {}, {.out = slice(out, 2, 0, 2)}); }),
      "KvCache::attention: q has Tq = 2, whose window of 20 keys begins before key 16, the "
      "first that entry 0 of 36 keys still has; after truncate() Tq may be at most 1, and one "
      "more for each key that is appended");
  x.append({0}, 1);
  x.expect_equal(2, "reference");
  x.truncate(1, 0);
  x.truncate(0, 0);
  x.append({0, 1}, 5);
  x.expect_equal(4, "reference");
}

}  // namespace
}  // namespace qkv::test
