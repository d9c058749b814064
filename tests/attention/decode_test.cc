// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Decoding over a large cache does not read masked keys. Here the memory of masked keys cannot be
// read, so that reading one ends the program; masked keys that share a page of memory with an
// unmasked key are NaN.
namespace qkv::test {
namespace {

constexpr Index kD = 64;
constexpr Index kCapacity = Index{1} << 20;

// Rows of a cache [1,2,capacity,kD]. Only the pages of memory with rows first .. end - 1 of each
// head can be read.
template <class T>
class Cache {
 public:
  static constexpr Index kHeads = 2;

  Cache(Index first, Index end, const ConstView& values) {
    data_ = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();  // NOLINT(performance-no-int-to-ptr)
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto bytes = static_cast<std::size_t>((end - first) * kD) * sizeof(T);
    for (Index g = 0; g < kHeads; ++g) {
      const auto offset = static_cast<std::size_t>((g * kCapacity + first) * kD) * sizeof(T);
      const std::size_t from = offset / page * page;
      const std::size_t to = (offset + bytes + page - 1) / page * page;
      auto* memory = static_cast<std::byte*>(data_);
      if (::mprotect(memory + from, to - from, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      std::memset(memory + from, 0xFF, to - from);  // NaN in every type
      std::memcpy(memory + offset, &values.at<T>({0, g, 0, 0}), bytes);
    }
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { ::munmap(data_, kBytes); }

  ConstView view() const {
    return ConstView(static_cast<const T*>(data_), {1, kHeads, kCapacity, kD});
  }

 private:
  static constexpr auto kBytes = static_cast<std::size_t>(kHeads * kCapacity * kD) * sizeof(T);
  void* data_ = nullptr;
};

template <class T>
class Decode : public testing::Test {
 protected:
  // Runs one query with `queries` query heads per key head over the whole cache, of which `options`
  // allow keys first .. end - 1, and over these keys alone. Expects results that differ by rounding
  // only.
  static void expect_reads(Index queries, Index first, Index end, const Options& options) {
    const DType type = dtype_of<T>;
    const Tensor q = normal({1, 2 * queries, 1, kD}, 1, type);
    const Tensor k = normal({1, 2, end - first, kD}, 2, type);
    const Tensor v = normal({1, 2, end - first, kD}, 3, type);
    const Cache<T> keys(first, end, k), values(first, end, v);
    for (const std::string& path : fast_paths(ScoreKind::kDot, type)) {
      SCOPED_TRACE(path);
      Context context = context_on(path, 2);
      Tensor got(type, {1, 2 * queries, 1, kD}), want(type, {1, 2 * queries, 1, kD});
      attention({q, keys.view(), values.view()}, options, {.out = got}, context);
      attention({q, k, v}, {}, {.out = want}, context);
      EXPECT_LE(largest_difference(test::values_of(got), test::values_of(want)),
                type == DType::kFloat32 ? 1e-6 : 8e-3);
    }
  }
};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(Decode, Types);

TYPED_TEST(Decode, AWindowReadsOnlyItsKeys) {
  for (const Index queries : {1, 3, 8, 16}) {
    for (const Index keys : {32, 256, 992}) {
      const Options options{.masks = {Window{keys - 1, 0}}};
      this->expect_reads(queries, kCapacity - keys, kCapacity, options);
    }
  }
}

TYPED_TEST(Decode, LengthsReadOnlyTheirKeys) {
  for (const Index keys : {32, 320, 1056}) {
    const std::vector<std::int64_t> lengths{keys};
    const Options options{.masks = {KeyLengths{lengths}}};
    this->expect_reads(2, 0, keys, options);
  }
}

}  // namespace
}  // namespace qkv::test
