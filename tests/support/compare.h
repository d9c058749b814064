// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_COMPARE_H_
#define QKV_TESTS_SUPPORT_COMPARE_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/view.h>

#include "core/shapes.h"
#include "core/storage.h"

// The comparison of an array of any dtype and layout with expected values.
namespace qkv::test {

// The bound of |got - want| <= absolute + relative * |want|. {0, 0} means equal (0 equals -0).
struct Bound {
  double relative = 0;
  double absolute = 0;
};

// The largest relative errors of one rounding: to the type in which sums are computed, and to the
// type in which they are stored if it is another.
struct Rounding {
  double sum, stored;
};
inline Rounding rounding_of(DType dtype) {
  return {dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24, dtype == DType::kBFloat16  ? 0x1p-8
                                                        : dtype == DType::kFloat16 ? 0x1p-11
                                                                                   : 0};
}

// Returns whether `got` is within the bound. NaN agrees only with NaN, and an infinity with itself.
inline bool agrees(double got, double want, const Bound& bound) {
  if (std::isnan(want)) return std::isnan(got);
  if (!std::isfinite(want) || !std::isfinite(got)) return got == want;
  return std::fabs(got - want) <= bound.absolute + bound.relative * std::fabs(want);
}

// Returns the elements of any array in C order, as double (for complex numbers the real parts).
inline std::vector<double> values_of(const ConstView& view) {
  std::vector<double> values;
  if (!view.given()) return values;
  values.reserve(static_cast<std::size_t>(view.element_count()));
  core::for_each_offset<1>(
      view.shape(), {view.strides()}, [&](const std::array<Index, 1>& offset, const Dims&) {
        values.push_back(core::load<double>(view.dtype(), view.data(), offset[0]));
      });
  return values;
}

namespace detail {

// Returns a number with enough digits to identify the double.
inline std::string shown(double value) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << value;
  return text.str();
}

inline Dims index_of(const Dims& shape, Index flat) {
  Dims index = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

inline testing::AssertionResult refused(std::string_view name, const std::string& reason,
                                        std::string_view replay) {
  testing::AssertionResult result = testing::AssertionFailure();
  result << name << ": " << reason;
  if (!replay.empty()) result << "\n  replay: " << replay;
  return result;
}

}  // namespace detail

// Compares an array of any dtype and layout with the expected values, in C order:
//   EXPECT_TRUE(compare("dq", dq, want, {1e-6, 1e-7}, "seed 12, case 3"));
// A failure reports the array, the index, got, want, the bound and `replay`, with which the case
// can be run again. It also counts all elements that disagree.
inline testing::AssertionResult compare(std::string_view name, const ConstView& got,
                                        std::span<const double> want, const Bound& bound,
                                        std::string_view replay) {
  if (!got.given()) return detail::refused(name, "is absent", replay);
  const std::vector<double> values = values_of(got);
  if (values.size() != want.size()) {
    return detail::refused(name,
                           describe(got) + " has " + std::to_string(values.size()) +
                               " elements, want " + std::to_string(want.size()),
                           replay);
  }
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t n = values.size(); n-- > 0;) {
    if (agrees(values[n], want[n], bound)) continue;
    ++wrong;
    first = n;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  const double allowed = bound.absolute + bound.relative * std::fabs(want[first]);
  return detail::refused(
      name,
      "at " + to_string(detail::index_of(got.shape(), static_cast<Index>(first))) + " of " +
          describe(got) + ": got " + detail::shown(values[first]) + ", want " +
          detail::shown(want[first]) + ", difference " +
          detail::shown(std::fabs(values[first] - want[first])) + ", bound " +
          detail::shown(allowed) + " (relative " + detail::shown(bound.relative) + ", absolute " +
          detail::shown(bound.absolute) + "); " + std::to_string(wrong) + " of " +
          std::to_string(values.size()) + " elements disagree",
      replay);
}

// Compares contiguous values in memory with the expected ones.
template <class T>
  requires(std::is_arithmetic_v<T>)
testing::AssertionResult compare(std::string_view name, std::span<const T> got,
                                 std::span<const double> want, const Bound& bound,
                                 std::string_view replay) {
  return compare(name, ConstView(got.data(), Dims(got.size())), want, bound, replay);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_COMPARE_H_
