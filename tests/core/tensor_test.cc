// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <qkv/error.h>
#include <qkv/tensor.h>

#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv {
namespace {

using test::error_of;
using test::Guarded;
using test::Layout;

TEST(Tensors, AreZeroAlignedAndTyped) {
  for (const Dims& shape : {Dims{}, Dims{1}, Dims{3, 5}, Dims{2, 0}, Dims{1000}}) {
    Tensor x(DType::kFloat32, shape);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().data()) % 64, 0U);
    EXPECT_TRUE(x.given());
    EXPECT_TRUE(x.view().is_contiguous());
    for (const float value : x.values<float>()) EXPECT_EQ(value, 0);
  }
  Tensor x(DType::kInt8, {3});
  EXPECT_NE(error_of([&] { x.values<float>(); }), "");
  EXPECT_FALSE(Tensor().given());
}

// A new tensor is zero even in memory that was freed before. Tensors of 2^15 or more float32 get
// their memory from calloc.
TEST(Tensors, LargeOnesAreZeroAndAligned) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const Index size : {(Index{1} << 15) - 1, Index{1} << 15, Index{1} << 18}) {
      Tensor x(DType::kFloat32, {size});
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().data()) % 64, 0U);
      for (const float value : x.values<float>()) ASSERT_EQ(value, 0);
      std::ranges::fill(x.values<float>(), 1.0F);
      Tensor moved(DType::kFloat32, {size % 2 == 0 ? 3 : 1 << 16});
      moved = std::move(x);
      x = Tensor(DType::kFloat32, {5});
      EXPECT_EQ(moved.values<float>().back(), 1);
    }
  }
}

// The zeros of a large tensor take no memory: the system provides a page at its first write.
TEST(Tensors, LargeOnesTakePagesWhenTheyAreWritten) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer's calloc writes every page";
#endif
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr Index kBytes = Index{64} << 20;
  Tensor x(DType::kUInt8, {kBytes});
  const auto pages_in_memory = [&] {
    auto first = reinterpret_cast<std::uintptr_t>(x.view().data()) / page * page;
    std::vector<unsigned char> resident(static_cast<std::size_t>(kBytes) / page);
    auto* const begin = static_cast<std::byte*>(x.view().data()) -
                        (reinterpret_cast<std::uintptr_t>(x.view().data()) - first);
    EXPECT_EQ(::mincore(begin, resident.size() * page, resident.data()), 0);
    return std::ranges::count_if(resident, [](unsigned char c) { return (c & 1U) != 0; });
  };
  EXPECT_LT(pages_in_memory(), static_cast<std::ptrdiff_t>(kBytes / page / 4));
  std::ranges::fill(x.values<std::uint8_t>(), std::uint8_t{1});
  EXPECT_GT(pages_in_memory(), static_cast<std::ptrdiff_t>(kBytes / page / 2));
}

TEST(Tensors, RefuseSizesThatOverflow) {
  constexpr Index kHuge = Index{1} << 61;
  EXPECT_EQ(error_of([] { Tensor(DType::kFloat64, {kHuge}); }),
            "Tensor: shape may take at most 2^63 - 1 bytes, got float64 [2305843009213693952]");
  EXPECT_NE(error_of([] { Tensor(DType::kInt8, {kHuge, 4}); }), "");
  EXPECT_EQ(error_of([] { Tensor(DType::kInt8, {-1}); }),
            "Tensor: shape must be 0 or more on each axis, got [-1]");
  EXPECT_EQ(error_of([] { Tensor(DType::kNone, {0}); }),
            "TypeError: Tensor: dtype must be an element type, got none");
}

TEST(Tensors, MoveLeavesNothingBehind) {
  Tensor x(DType::kFloat32, {2});
  x.values<float>()[1] = 5;
  Tensor y = std::move(x);
  EXPECT_FALSE(x.given());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): tested
  EXPECT_EQ(y.values<float>()[1], 5);
  x = std::move(y);
  EXPECT_FALSE(y.given());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(x.values<float>()[1], 5);
}

TEST(Copy, AnyLayoutToAnyLayout) {
  test::Random random(1);
  for (const Dims& shape : {Dims{}, Dims{7}, Dims{3, 4}, Dims{2, 3, 4}, Dims{0, 3}, Dims{3, 0}}) {
    for (const Layout from : test::kLayouts) {
      for (const Layout to : test::kOwnLayouts) {
        Guarded source(DType::kFloat32, shape, from);
        Guarded target(DType::kFloat32, shape, to);
        const std::vector<double> want = test::values_of(source.fill_normal(random));
        copy(source, target);
        const std::string replay =
            std::string(name_of(from)) + " to " + std::string(name_of(to)) + to_string(shape);
        EXPECT_TRUE(test::compare("target", target, want, {}, replay));
        EXPECT_TRUE(test::compare("source", source, want, {}, replay));
        EXPECT_TRUE(target.intact() && source.intact()) << replay;
        EXPECT_TRUE(test::compare("contiguous", contiguous(source), want, {}, replay));
      }
    }
  }
}

TEST(Copy, EveryPairOfDTypesConvertsOrIsRefused) {
  const auto family = [](DType dtype) {
    if (is_real(dtype)) return 0;
    return dtype == DType::kComplex128 ? 1 : 2;
  };
  std::vector<DType> all;
#define QKV_COLLECT(name, type, text) all.push_back(DType::name);
  QKV_FOR_EACH_DTYPE(QKV_COLLECT)
#undef QKV_COLLECT
  for (const DType from : all) {
    for (const DType to : all) {
      Guarded source(from, {2, 3}, Layout::kPermuted);
      const std::vector<double> want{1, 0, 0, 1, 1, 0};
      source.fill(want);
      const std::string replay = std::string(name_of(from)) + " to " + std::string(name_of(to));
      if (family(from) != family(to)) {
        Guarded target(to, {2, 3}, Layout::kContiguous);
        EXPECT_EQ(error_of([&] { copy(source, target); }),
                  "TypeError: copy: source converts between real types, or between integer types "
                  "and bool, got " +
                      describe(source) + " for " + std::string(name_of(to)));
        continue;
      }
      EXPECT_TRUE(test::compare("converted", convert(source, to), want, {}, replay));
    }
  }
}

TEST(Copy, RoundsOnce) {
  // Each value is 2^-40 above a tie of bfloat16 or float16. Rounding to float32 first would lose
  // the 2^-40, and the tie would go down, to 1.
  Tensor x(DType::kFloat64, {2});
  x.values<double>()[0] = 1 + 0x1p-8 + 0x1p-40;
  x.values<double>()[1] = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(convert(x, DType::kBFloat16).values<BFloat16>()[0].bits, 0x3F81);
  EXPECT_EQ(convert(x, DType::kFloat16).values<Float16>()[1].bits, 0x3C01);
  EXPECT_EQ(convert(x, DType::kFloat32).values<float>()[0], 1 + 0x1p-8F);
}

TEST(Copy, CarriesNanAndInfinity) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> want{std::nan(""), kInfinity, -kInfinity, 0};
  for (const DType from : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const DType to : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Guarded x(from, {4}, Layout::kContiguous);
      EXPECT_TRUE(test::compare("converted", convert(x.fill(want), to), want, {}, ""));
    }
  }
}

TEST(Copy, IntegersMustFit) {
  Tensor x(DType::kInt64, {2, 2});
  x.values<std::int64_t>()[2] = -129;
  EXPECT_EQ(error_of([&] { convert(x, DType::kInt8); }),
            "convert: source holds -129 at [1,0], which int8 cannot hold");
  EXPECT_NE(error_of([&] { convert(x, DType::kUInt64); }), "");
  EXPECT_EQ(convert(x, DType::kBool).values<bool>()[2], true);
  x.values<std::int64_t>()[2] = -128;
  EXPECT_EQ(convert(x, DType::kInt8).values<std::int8_t>()[2], -128);
}

TEST(Copy, BroadcastsTheSource) {
  std::vector<float> row{1, 2};
  Tensor target(DType::kFloat64, {3, 2});
  copy(row, target);
  EXPECT_TRUE(test::compare("target", target, std::vector<double>{1, 2, 1, 2, 1, 2}, {}, ""));
  EXPECT_EQ(error_of([&] { copy(target, row); }),
            "copy: source float64 [3,2] does not broadcast to the target float32 [2]");
}

TEST(Copy, RefusesSharedMemoryAndAbsentViews) {
  std::vector<float> x{1, 2, 3, 4};
  const View all(x);
  EXPECT_EQ(error_of([&] { copy(slice(all, 0, 3, -1, -1), all); }),
            "copy: target must not share memory with source, got float32 [4]");
  EXPECT_EQ(error_of([&] { copy(slice(all, 0, 0, 2), slice(all, 0, 2, 4)); }), "");
  EXPECT_EQ(x[2], 1);
  std::vector<float> y{0};
  EXPECT_EQ(error_of([&] { copy(all, View(y.data(), {4}, {0})); }),
            "copy: target must not overlap itself, got float32 [4] with "
            "strides [0]");
  EXPECT_EQ(error_of([&] { copy({}, all); }), "copy: source is absent");
  EXPECT_EQ(error_of([&] { copy(all, {}); }), "copy: target is absent");
  EXPECT_EQ(error_of([&] { contiguous({}); }), "contiguous: view is absent");
}

TEST(Copy, AnErrorLeavesTheTargetAlone) {
  Guarded source(DType::kInt64, {3}, Layout::kContiguous);
  source.fill(std::vector<double>{1, 2, 300});
  Guarded target(DType::kInt8, {3}, Layout::kContiguous);
  EXPECT_NE(error_of([&] { copy(source, target); }), "");
  EXPECT_TRUE(test::compare("target", target, std::vector<double>(3), {}, ""));
}

}  // namespace
}  // namespace qkv
