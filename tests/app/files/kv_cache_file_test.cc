// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/app/kv_cache_file.h>
#include <qkv/dtype.h>
#include <qkv/tensor.h>

#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"
#include "tests/attention/caches.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;

constexpr Index kWidth = 3, kValueWidth = 2;

KvCacheSizes sizes(DType dtype = DType::kFloat32, Index window = 0) {
  const Index channels = dtype == DType::kQ8 ? BlockQ8::kNumbers : 1;  // channels of an element
  return {.dtype = dtype,
          .B = 2,
          .G = 1,
          .D = kWidth * channels,
          .E = kValueWidth * channels,
          .page = 16,
          .window = window,
          .queries = 2};
}

void append(KvCache& cache, Index T) {
  Tensor k(DType::kFloat32, {2, 1, T, cache.sizes().D});
  Tensor v(DType::kFloat32, {2, 1, T, cache.sizes().E});
  float number = 0.25F;  // where the logistic map, which is irregular, begins
  for (Tensor* x : {&k, &v}) {
    for (float& value : x->values<float>()) value = number = 3.9F * number * (1 - number);
  }
  cache.append(k, v);
}

// A cache of two batch entries: they share their first page, and each has a second one.
KvCache filled(const KvCacheSizes& cache_sizes) {
  KvCache cache(cache_sizes);
  append(cache, 17);
  cache.reorder(std::vector<Index>{1, 1});
  append(cache, 3);
  return cache;
}

void expect_equal(const KvCache& a, const KvCache& b) {
  test::expect_equal(a.contents(), b.contents());
}

TEST(KvCacheFile, GoesOnAsTheCacheThatWasWritten) {
  const Directory directory;
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kQ8}) {
    for (const Index window : {0, 5}) {
      KvCache cache = filled(sizes(dtype, window));
      if (window > 0) append(cache, 60);
      write_kv_cache(directory / "cache", cache);
      KvCache again = read_kv_cache(directory / "cache", sizes(dtype, window));
      expect_equal(cache, again);
      for (KvCache* each : {&cache, &again}) append(*each, 40);
      expect_equal(cache, again);
      write_kv_cache(directory / "again", cache);  // both files must have the same bytes
      write_kv_cache(directory / "cache", again);
      EXPECT_EQ(test::read(directory / "again"), test::read(directory / "cache"));
    }
  }
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"again", "cache"}));
  write_kv_cache(directory / "empty", KvCache(sizes()));
  expect_equal(read_kv_cache(directory / "empty"), KvCache(sizes()));
}

TEST(KvCacheFile, RefusesOtherSizesThanExpected) {
  const Directory directory;
  const std::string path = directory / "cache";
  write_kv_cache(path, filled(sizes(DType::kBFloat16, 5)));
  const auto expecting = [&](const auto& change) {
    KvCacheSizes expected = sizes(DType::kBFloat16, 5);
    change(expected);
    const std::string text = complaint<InputError>([&] { read_kv_cache(path, expected); });
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  using S = KvCacheSizes;
  EXPECT_EQ(expecting([](S& s) { s.dtype = DType::kFloat16; }),
            "dtype: expected float16, got bfloat16");
  EXPECT_EQ(expecting([](S& s) { s.B = 3; }), "B: expected 3, got 2");
  EXPECT_EQ(expecting([](S& s) { s.G = 2; }), "G: expected 2, got 1");
  EXPECT_EQ(expecting([](S& s) { s.D = 2; }), "D: expected 2, got 3");
  EXPECT_EQ(expecting([](S& s) { s.E = 3; }), "E: expected 3, got 2");
  EXPECT_EQ(expecting([](S& s) { s.page = 32; }), "page: expected 32, got 16");
  EXPECT_EQ(expecting([](S& s) { s.window = 0; }), "window: expected 0, got 5");
  EXPECT_EQ(expecting([](S& s) { s.queries = 3; }), "queries: expected 3, got 2");
}

// ---- malformed files ----------------------------------------------------------------------------

// The error about a file in which the field `name` has the value `value` or is absent.
std::string complaint_about(const std::string& name, Array value, bool absent = false,
                            DType dtype = DType::kFloat32) {
  const Directory directory;
  const std::string path = directory / "cache";
  write_kv_cache(path, filled(sizes(dtype, 20)));
  std::vector<NamedArray> arrays = read_safetensors(path);
  std::erase_if(arrays, [&](const NamedArray& array) { return array.name == name; });
  if (!absent) arrays.push_back({name, std::move(value)});
  write_safetensors(path, test::views(arrays));
  const std::string text = complaint<InputError>([&] { read_kv_cache(path); });
  return text.substr(std::min(text.size(), path.size() + 2));
}

Strings word(const std::string& text) { return {Dims(), {text}}; }

TEST(KvCacheFile, ErrorsNameTheWrongField) {
  EXPECT_EQ(complaint_about("format", word("qkv KvCache 2")),
            "format: expected \"qkv KvCache 1\", got \"qkv KvCache 2\"");
  EXPECT_EQ(complaint_about("format", {}, true), "format: expected text, got none");
  EXPECT_EQ(complaint_about("dtype", word("int32")),
            "dtype: expected float32, float64, bfloat16, float16 or q8, got \"int32\"");
  EXPECT_EQ(complaint_about("dtype", Strings{{2}, {"float32", "float32"}}),
            "dtype: expected one text, got 2");
  EXPECT_EQ(complaint_about("dtype", word("float64")),
            "k_pages must be float64 [pages,page,G,D] = [3,16,1,3], got float32 [3,16,1,3]");
  EXPECT_EQ(complaint_about("window", word("20.5")),
            "window: expected a whole number, got \"20.5\"");
  EXPECT_EQ(complaint_about("window", word("-1")), "window must be in 0 to 2^53, got -1");
  EXPECT_EQ(complaint_about("queries", Tensor(DType::kInt64, {1})),
            "queries: expected text, got a tensor");
  EXPECT_EQ(complaint_about("k_pages", word("none")), "k_pages: expected a tensor, got text");
  EXPECT_EQ(complaint_about("k_pages", {}, true), "k_pages: expected a tensor, got none");
  EXPECT_EQ(complaint_about("k_pages", Tensor(DType::kFloat32, {3, 16, 3})),
            "k_pages: expected 4 axes, got float32 [3,16,3]");
  EXPECT_EQ(complaint_about("v_pages", Tensor(DType::kFloat32, {3, 16, 2})),
            "v_pages: expected 4 axes, got float32 [3,16,2]");
  EXPECT_EQ(complaint_about("k_pages", Tensor(DType::kFloat32, {3, 17, 1, 3})),
            "page must be a multiple of 16, got 17");
  EXPECT_EQ(complaint_about("lengths", Tensor(DType::kInt64, {0})), "B must be 1 or more, got 0");
  EXPECT_EQ(complaint_about("lengths", Tensor(DType::kInt64, {2})),
            "block_tables must be int64 [B,pages] = [2,0], got int64 [2,2]");
  EXPECT_EQ(complaint_about("first_keys", Tensor(DType::kInt64, {3})),
            "first_keys must be int64 [B] = [2], got int64 [3]");
  EXPECT_EQ(complaint_about("extra", Tensor(DType::kInt64, {3})),
            "\"extra\": expected no field of this name");
  EXPECT_EQ(complaint_about("first_keys", {}, true), "first_keys: expected a tensor, got none");
}

TEST(KvCacheFile, ErrorsNameATypeThatIsNotRead) {
  const Directory directory;
  write_kv_cache(directory / "cache", filled(sizes(DType::kFloat32)));
  const std::string path =
      directory.write("other", test::with_unread(test::read(directory / "cache"), "v_pages"));
  EXPECT_EQ(complaint<InputError>([&] { read_kv_cache(path); }),
            path + ": v_pages: expected a tensor, got X32 [3,16,1,2] (unsupported type)");
}

// Safetensors has no dtype for q8 blocks, so they are stored as bytes, which other programs can
// read.
TEST(KvCacheFile, StoresBlocksOfQ8AsBytes) {
  const Directory directory;
  const KvCache cache = filled(sizes(DType::kQ8));
  write_kv_cache(directory / "cache", cache);
  const KvCacheContents contents = cache.contents();
  int pages = 0;
  for (const NamedArray& array : read_safetensors(directory / "cache")) {
    if (array.name != "k_pages" && array.name != "v_pages") continue;
    const bool of_k = array.name == "k_pages";
    const auto& bytes = std::get<Tensor>(array.array);
    EXPECT_EQ(describe(bytes), of_k ? "uint8 [3,16,1,102]" : "uint8 [3,16,1,68]");
    EXPECT_EQ(test::bytes_of(bytes), test::bytes_of(of_k ? contents.k_pages : contents.v_pages));
    ++pages;
  }
  EXPECT_EQ(pages, 2);

  const auto with = [](const std::string& name, Array value) {
    return complaint_about(name, std::move(value), false, DType::kQ8);
  };
  EXPECT_EQ(with("k_pages", Tensor(DType::kUInt8, {3, 16, 1, 100})),
            "k_pages: expected rows of blocks of 34 bytes, as uint8, got uint8 [3,16,1,100]");
  EXPECT_EQ(with("v_pages", Tensor(DType::kInt8, {3, 16, 1, 68})),
            "v_pages: expected rows of blocks of 34 bytes, as uint8, got int8 [3,16,1,68]");
  EXPECT_EQ(with("v_pages", Tensor(DType::kUInt8, {2, 16, 1, 68})),
            "v_pages must be q8 [pages,page,G,E/32] = [3,16,1,2], got q8 [2,16,1,2]");
  EXPECT_EQ(with("dtype", word("float16")),
            "k_pages must be float16 [pages,page,G,D] = [3,16,1,102], got uint8 [3,16,1,102]");
  EXPECT_EQ(complaint_about("dtype", word("q8")),
            "k_pages: expected rows of blocks of 34 bytes, as uint8, got float32 [3,16,1,3]");
}

// A damaged file is rejected, or read as a cache whose functions do not fail.
TEST(KvCacheFile, DamagedFilesAreReadOrRefused) {
  const Directory directory;
  const std::string path = directory / "cache";
  write_kv_cache(path, filled(sizes(DType::kFloat16, 20)));
  const std::string whole = test::read(path);
  const auto is_read = [&] {
    try {
      KvCache cache = read_kv_cache(path);
      if (cache.sizes().D != kWidth || cache.sizes().E != kValueWidth || cache.sizes().G != 1) {
        return true;
      }
      append(cache, 20);
      cache.reorder(std::vector<Index>{1, 0});
      cache.reset();
      return true;
    } catch (const InputError&) {
      return false;
    }
  };
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
  };
  int read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xFF}) {
      put(at, static_cast<char>(whole[at] ^ change));
      read += is_read() ? 1 : 0;
    }
    put(at, whole[at]);
  }
  EXPECT_GT(read, 100);  // bytes of keys and values may have any value
  EXPECT_TRUE(is_read());
  for (std::size_t length = whole.size(); length > 8; length -= 8) {
    std::filesystem::resize_file(path, length - 1);
    EXPECT_FALSE(is_read()) << length;
  }
}

}  // namespace
}  // namespace qkv::app
