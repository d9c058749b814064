// SPDX-License-Identifier: Apache-2.0
#include "tests/support/arrays.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/overlap.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

const std::vector<Dims> kShapes{{}, {1}, {5}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2}, {0}, {2, 0, 3}};

// Calls f(array, layout, text) for each dtype, layout and shape.
template <class F>
void for_each_array(const F& f) {
#define QKV_ARRAYS(name, type, text)                                                      \
  for (const Layout layout : kLayouts) {                                                  \
    for (const Dims& shape : kShapes) {                                                   \
      Guarded array(DType::name, shape, layout);                                          \
      f(array, layout,                                                                    \
        std::string(text) + " " + std::string(name_of(layout)) + " " + to_string(shape)); \
    }                                                                                     \
  }
  QKV_FOR_EACH_DTYPE(QKV_ARRAYS)
#undef QKV_ARRAYS
}

std::uint8_t* byte_at(const Guarded& array, Index distance) {
  return static_cast<std::uint8_t*>(array.view().data()) + distance;
}

TEST(Guarded, HasTheShapeAndZeros) {
  int count = 0;
  for_each_array([&](const Guarded& array, Layout, const std::string& text) {
    const std::vector<double> zeros(static_cast<std::size_t>(array.view().element_count()));
    EXPECT_TRUE(compare("array", array, zeros, {}, text));
    EXPECT_TRUE(array.intact()) << text;
    ++count;
  });
  EXPECT_EQ(count, 14 * 6 * 8);
}

TEST(Guarded, FillsInCOrderWhateverTheLayout) {
  for (const Layout layout : kOwnLayouts) {
    Guarded array(DType::kFloat32, {2, 3}, layout);
    array.fill(std::vector<double>{1, 2, 3, 4, 5, 6});
    EXPECT_EQ(array.view().at<float>({1, 0}), 4) << name_of(layout);
    EXPECT_TRUE(compare("array", array, std::vector<double>{1, 2, 3, 4, 5, 6}, {}, ""));
    EXPECT_FALSE(core::self_overlaps(array)) << name_of(layout);
    EXPECT_TRUE(array.intact());
  }
  Guarded repeated(DType::kFloat32, {2, 3}, Layout::kBroadcast);
  repeated.fill(std::vector<double>{1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(compare("array", repeated, std::vector<double>{4, 5, 6, 4, 5, 6}, {}, ""));
}

TEST(Guarded, LayoutsAreWhatTheySay) {
  const auto strides = [](Layout layout) {
    return Guarded(DType::kFloat32, {2, 3, 4}, layout).view().strides();
  };
  EXPECT_EQ(strides(Layout::kContiguous), Dims(12, 4, 1));
  EXPECT_EQ(strides(Layout::kPermuted), Dims(1, 2, 6));
  EXPECT_EQ(strides(Layout::kSliced), Dims(126, 18, 2));
  EXPECT_EQ(strides(Layout::kBroadcast), Dims(0, 4, 1));
  EXPECT_EQ(strides(Layout::kNegative), Dims(-12, -4, -1));
  EXPECT_EQ(strides(Layout::kOffset), Dims(12, 4, 1));
  const auto remainder = [](Layout layout) {
    const Guarded array(DType::kFloat32, {2, 3}, layout);
    return reinterpret_cast<std::uintptr_t>(array.view().data()) % 64;
  };
  EXPECT_EQ(remainder(Layout::kContiguous), 0U);
  EXPECT_EQ(remainder(Layout::kOffset), 4U);
}

TEST(Guarded, WritingElementsIsAllowedAndOnlyThem) {
  for_each_array([&](const Guarded& array, Layout layout, const std::string& text) {
    if (array.view().element_count() == 0) return;
    const auto size = static_cast<Index>(size_of(array.view().dtype()));
    for (Index n = 0; n < size; ++n) *byte_at(array, n) ^= 1;
    EXPECT_TRUE(array.intact()) << text;
    const bool last_is_lowest = layout == Layout::kNegative;
    const Index outside = last_is_lowest ? size : -1;  // just past, or before, the first element
    *byte_at(array, outside) ^= 1;
    EXPECT_FALSE(array.intact()) << text;
    *byte_at(array, outside) ^= 1;
    EXPECT_TRUE(array.intact()) << text;
  });
}

TEST(Guarded, EveryByteAroundAndBetweenIsWatched) {
  const Guarded array(DType::kInt16, {2, 3}, Layout::kSliced);
  int watched = 0;
  for (Index byte = -256; byte < 2 * (14 + 4 + 1) + 256; ++byte) {
    *byte_at(array, byte) ^= 0x10;
    watched += !array.intact();
    *byte_at(array, byte) ^= 0x10;
  }
  EXPECT_EQ(watched, 256 + 2 * 19 + 256 - 2 * 6);
}

TEST(Guarded, EmptyArraysAreWatchedWhole) {
  const Guarded array(DType::kFloat32, {2, 0}, Layout::kContiguous);
  *byte_at(array, 0) ^= 1;
  EXPECT_FALSE(array.intact());
}

TEST(Guarded, PoisonIsNanAndDiffersBetweenArrays) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Guarded a(dtype, {3, 4}, Layout::kSliced);
    const Guarded b(dtype, {3, 4}, Layout::kSliced);
    for (Index n = -20; n < 70; ++n) {  // element 42 is the last; a band has 32 or more
      const bool element = n >= 0 && n < 54 && n % 18 < 8 && n % 2 == 0;
      EXPECT_EQ(std::isnan(core::load<double>(dtype, a.view().data(), n)), !element)
          << name_of(dtype) << " " << n;
    }
    const std::size_t bytes = 20 * size_of(dtype);
    EXPECT_NE(std::memcmp(byte_at(a, -static_cast<Index>(bytes)),
                          byte_at(b, -static_cast<Index>(bytes)), bytes),
              0);
  }
}

TEST(Guarded, RandomValuesHaveTheirMoments) {
  Random random(1);
  Guarded normal(DType::kFloat32, {100, 100}, Layout::kSliced);
  normal.fill_normal(random, 3);
  double sum = 0;
  double squares = 0;
  for (const double x : values_of(normal)) {
    sum += x;
    squares += x * x;
  }
  // The bounds are five standard errors: 3 / sqrt(n) of the mean, sqrt(2 / n) relative of the
  // variance.
  EXPECT_NEAR(sum / 1e4, 0, 5 * 0.03);
  EXPECT_NEAR(squares / 1e4 / 9, 1, 5 * 0.0142);

  Guarded whole(DType::kInt8, {1000}, Layout::kNegative);
  whole.fill_whole(random, -1, 2);
  std::array<int, 4> seen{};
  for (const double x : values_of(whole)) ++seen[static_cast<std::size_t>(x + 1)];
  for (const int count : seen) EXPECT_GT(count, 150);
}

}  // namespace
}  // namespace qkv::test
