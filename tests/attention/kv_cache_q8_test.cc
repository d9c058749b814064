// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/kv_cache.h>
#include <qkv/q8.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/caches.h"
#include "tests/attention/paths.h"
#include "tests/attention/q8_blocks.h"
#include "tests/support/errors.h"

// A cache of q8 holds the blocks of quantize_q8, and its results are bit-identical with those of
// one call over them.
namespace qkv::test {
namespace {

constexpr Index kHeads = 4, kKeyHeads = 2, kWidth = 64, kValueWidth = 32;

KvCacheSizes sizes(Index B, Index window = 0, DType dtype = DType::kQ8) {
  return {.dtype = dtype,
          .B = B,
          .G = kKeyHeads,
          .D = kWidth,
          .E = kValueWidth,
          .page = 16,
          .window = window,
          .queries = 4};
}

// Returns x quantized and dequantized again.
Tensor rounded(const ConstView& x) {
  Tensor numbers(DType::kFloat32, x.shape());
  dequantize_q8(quantized(x), numbers);
  return numbers;
}

TEST(KvCacheQ8, HasTheBlocksOfQuantizeQ8) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    // k is stored by head, with its channels in reverse; v is stored by token.
    const Tensor k = normal({2, kKeyHeads, 21, kWidth}, 1, dtype);
    const Tensor v = normal({2, 21, kKeyHeads, kValueWidth}, 2, dtype);
    const ConstView backward(static_cast<const char*>(k.view().data()) +
                                 static_cast<std::size_t>(kWidth - 1) * size_of(dtype),
                             dtype, k.shape(), {kKeyHeads * 21 * kWidth, 21 * kWidth, kWidth, -1});
    const ConstView by_token = permute(v.view(), {0, 2, 1, 3});
    KvCache numbers(sizes(2)), blocks(sizes(2)), mixed(sizes(2));
    const Tensor k8 = quantized(backward), v8 = quantized(by_token);
    numbers.append(backward, by_token);
    blocks.append(k8, v8);
    mixed.append(k8, by_token);
    const KvCacheContents got = numbers.contents();
    EXPECT_EQ(got.k_pages.dtype(), DType::kQ8);
    EXPECT_EQ(got.k_pages.shape(), (Dims{4, 16, kKeyHeads, kWidth / 32}));
    EXPECT_EQ(got.v_pages.shape(), (Dims{4, 16, kKeyHeads, kValueWidth / 32}));
    expect_equal(got, blocks.contents());
    expect_equal(got, mixed.contents());
    // Entry 0 has pages 0 and 1: key 17 is row 1 of page 1. Its head 1 is compared.
    const auto* const k_blocks = got.k_pages.view().as<BlockQ8>();
    const auto* const k8_blocks = k8.view().as<BlockQ8>();
    EXPECT_EQ(std::memcmp(k_blocks + (17 * kKeyHeads + 1) * 2, k8_blocks + (21 + 17) * 2,
                          2 * sizeof(BlockQ8)),
              0);
  }
}

// Blocks may have any strides. A cache to which blocks stored by token are appended holds the
// numbers of a float32 cache to which the blocks' numbers are appended.
TEST(KvCacheQ8, TakesBlocksOfAnyStrides) {
  const Tensor k = quantized(normal({1, 20, kKeyHeads, kWidth}, 1));
  const Tensor v = quantized(normal({1, 20, kKeyHeads, kValueWidth}, 2));
  Tensor k_numbers(DType::kFloat32, {1, 20, kKeyHeads, kWidth});
  Tensor v_numbers(DType::kFloat32, {1, 20, kKeyHeads, kValueWidth});
  dequantize_q8(k, k_numbers);
  dequantize_q8(v, v_numbers);
  KvCache cache(sizes(1)), plain(sizes(1, 0, DType::kFloat32));
  for (const auto& [begin, end] : {std::pair<Index, Index>{0, 17}, {17, 20}}) {
    const auto transposed = [&, from = begin, to = end](const Tensor& x) {
      return permute(slice(ConstView(x), 1, from, to), {0, 2, 1, 3});
    };
    cache.append(transposed(k), transposed(v));
    plain.append(transposed(k_numbers), transposed(v_numbers));
  }
  const KvCacheContents got = cache.contents(), want = plain.contents();
  Tensor k_pages(DType::kFloat32, want.k_pages.shape());
  Tensor v_pages(DType::kFloat32, want.v_pages.shape());
  dequantize_q8(got.k_pages, k_pages);
  dequantize_q8(got.v_pages, v_pages);
  EXPECT_TRUE(same_bits(k_pages, want.k_pages));
  EXPECT_TRUE(same_bits(v_pages, want.v_pages));
}

// Runs steps of all kinds on a q8 cache and on a float32 cache that is given the numbers of the
// blocks.
struct CachePair {
  KvCache q8, plain;
  std::uint64_t seed = 100;

  CachePair(Index B, Index window)
      : q8(sizes(B, window)), plain(sizes(B, window, DType::kFloat32)) {}
  void append(const std::vector<Index>& entries, Index T) {
    const auto n = static_cast<Index>(entries.size());
    const Tensor k = normal({n, kKeyHeads, T, kWidth}, ++seed);
    const Tensor v = normal({n, kKeyHeads, T, kValueWidth}, ++seed);
    q8.append(k, v, entries);
    plain.append(rounded(k), rounded(v), entries);
  }
  void truncate(Index entry, Index length) {
    for (KvCache* cache : {&q8, &plain}) cache->truncate(entry, length);
  }
  void reorder(const std::vector<Index>& from) {
    for (KvCache* cache : {&q8, &plain}) cache->reorder(from);
  }
  void expect_same(Index queries, const std::string& path, const Options& options = {}) const {
    EXPECT_EQ(q8.used_pages(), plain.used_pages());
    const Tensor q = normal({q8.sizes().B, kHeads, queries, kWidth}, 7);
    Tensor got(DType::kFloat32, {q.size(0), kHeads, queries, kValueWidth});
    Tensor want(DType::kFloat32, got.shape());
    Context context = context_on(path);
    q8.attention(q, options, {.out = got}, context);
    plain.attention(q, options, {.out = want}, context);
    EXPECT_TRUE(same_bits(got, want)) << path << ", " << queries << " queries";
  }
};

TEST(KvCacheQ8, EqualsACacheOfItsNumbersOnEveryPath) {
  for (const std::string& path : all_paths()) {
    for (const Index window : {0, 50}) {
      SCOPED_TRACE(window);
      CachePair x(3, window);
      x.expect_same(1, path);  // no keys
      x.append({0, 1, 2}, 70);
      x.expect_same(1, path);
      x.append({2, 0}, 1);
      x.append({1}, 130);
      x.expect_same(4, path, {.masks = {Causal{}}});
      if (window == 0) x.expect_same(40, path, {.masks = {Causal{}}});
      x.reorder({1, 1, 0});
      x.append({0, 1, 2}, 2);  // into a shared page
      x.truncate(0, x.q8.lengths()[0] - 3);
      x.append({0}, 1);
      x.expect_same(2, path);
    }
  }
}

// Compares the cache with attention() over the same blocks in one array.
TEST(KvCacheQ8, EqualsBlocksInOnePiece) {
  const Tensor k = quantized(normal({1, kKeyHeads, 150, kWidth}, 1));
  const Tensor v = quantized(normal({1, kKeyHeads, 150, kValueWidth}, 2));
  KvCache cache(sizes(1));
  cache.append(k, v);
  for (const Index queries : {1, 50}) {
    const Tensor q = normal({1, kHeads, queries, kWidth}, 3);
    Tensor got(DType::kFloat32, {1, kHeads, queries, kValueWidth});
    Tensor want(DType::kFloat32, got.shape());
    cache.attention(q, {}, {.out = got});
    attention({q, k, v}, {}, {.out = want});
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(KvCacheQ8, ContinuesFromItsContents) {
  for (const Index window : {0, 50}) {
    CachePair x(3, window);
    x.append({0, 1, 2}, 37);
    x.append({1}, 90);
    x.reorder({1, 1, 0});
    x.truncate(2, 0);
    KvCache again(x.q8.contents());
    EXPECT_EQ(again.sizes().D, kWidth);
    expect_equal(again.contents(), x.q8.contents());
    std::swap(again, x.q8);
    x.append({0, 1, 2}, 20);
    x.expect_same(3, "reference");
  }
}

TEST(KvCacheQ8, KeepsMemoryAndHeldPages) {
  KvCache cache(sizes(1));
  cache.reserve(2);
  // A block has 34 bytes. A key and its value have 3 blocks per head. bytes() also counts tables.
  EXPECT_GE(cache.bytes(), std::size_t{2 * 16 * kKeyHeads * 3 * 34});
  EXPECT_LT(cache.bytes(), std::size_t{2 * 16 * kKeyHeads * 3 * 34 + 4096 * 2});
  const std::shared_ptr<const void> hold = cache.hold_pages();
  const void* const data = cache.inputs({}).k.data();
  const Tensor k = normal({1, kKeyHeads, 33, kWidth}, 1);
  const Tensor v = normal({1, kKeyHeads, 33, kValueWidth}, 2);
  const auto part = [](const Tensor& x, Index end) { return slice(ConstView(x), 2, 0, end); };
  cache.append(part(k, 32), part(v, 32));
  EXPECT_EQ(cache.inputs({}).k.data(), data);
  EXPECT_EQ(error_of([&] { cache.append(part(k, 1), part(v, 1)); }),
            "KvCache::append: the pages cannot move while held: room for 0 more, 1 needed; call "
            "reserve() before holding them");
  cache.reset();
  EXPECT_EQ(cache.used_pages(), 0);
  EXPECT_EQ(cache.inputs({}).k.data(), data);
}

TEST(KvCacheQ8, RejectsWrongSizes) {
  const auto error = [](KvCacheSizes of) { return error_of([&] { const KvCache cache(of); }); };
  KvCacheSizes wrong = sizes(1);
  wrong.D = 48;
  EXPECT_EQ(error(wrong), "KvCache: sizes.D must be a multiple of 32 with q8, got 48");
  wrong = sizes(1);
  wrong.E = 1;
  EXPECT_EQ(error(wrong), "KvCache: sizes.E must be a multiple of 32 with q8, got 1");
  wrong.E = 0;
  EXPECT_EQ(error(wrong), "KvCache: sizes.E must be 1 or more, got 0");
}

TEST(KvCacheQ8, RejectedCallsChangeNothing) {
  KvCache cache(sizes(1)), plain(sizes(1, 0, DType::kFloat32));
  const Tensor k = normal({1, kKeyHeads, 3, kWidth}, 1);
  const Tensor v = normal({1, kKeyHeads, 3, kValueWidth}, 2);
  cache.append(k, v);
  const KvCacheContents before = cache.contents();
  const auto appending = [&](const ConstView& keys, const ConstView& values) {
    return error_of([&] { cache.append(keys, values); });
  };
  EXPECT_EQ(appending(convert(k, DType::kFloat64), v),
            "TypeError: KvCache::append: k must be float32, bfloat16, float16 or q8, got float64 "
            "[1,2,3,64]");
  EXPECT_EQ(appending(k, Tensor(DType::kInt8, v.shape())),
            "TypeError: KvCache::append: v must be float32, bfloat16, float16 or q8, got int8 "
            "[1,2,3,32]");
  EXPECT_EQ(appending(quantized(k), k),
            "KvCache::append: v must have the shape [n,G,T,E] = [1,2,3,32], got float32 "
            "[1,2,3,64]");
  EXPECT_EQ(appending(quantized(v), v),
            "KvCache::append: k must have the shape [n,G,T,D/32] = [1,2,3,2], got q8 [1,2,3,1]");
  EXPECT_EQ(error_of([&] { plain.append(k, quantized(v)); }),
            "TypeError: KvCache::append: v must be float32, float64, bfloat16 or float16, got q8 "
            "[1,2,3,1]");
  // v is checked to its last number, even if k is valid.
  Tensor too_large = contiguous(v);
  too_large.values<float>().back() = std::numeric_limits<float>::infinity();
  EXPECT_EQ(appending(k, too_large),
            "KvCache::append: v must hold numbers between -65520 * 127 and 65520 * 127, got inf in "
            "float32 [1,2,3,32]");
  too_large.values<float>().back() = 8.4e6F;
  EXPECT_EQ(
      appending(k, too_large),
      "KvCache::append: v must hold numbers between -65520 * 127 and 65520 * 127, got 8.4e+06 in "
      "float32 [1,2,3,32]");
  EXPECT_EQ(appending(permute(slice(cache.inputs({}).k, 1, 0, 3), {0, 2, 1, 3}), v),
            "KvCache::append: k must not lie in the cache");
  expect_equal(cache.contents(), before);
  KvCacheContents other = cache.contents();
  other.k_pages = Tensor(DType::kQ8, {1, 16, kKeyHeads, 1});
  EXPECT_EQ(error_of([&] { const KvCache again(other); }),
            "KvCache: k_pages must be q8 [pages,page,G,D/32] = [1,16,2,2], got q8 [1,16,2,1]");
}

}  // namespace
}  // namespace qkv::test
