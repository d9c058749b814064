// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_ARRAYS_H_
#define QKV_TESTS_SUPPORT_ARRAYS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>
#include <qkv/view.h>

#include "core/shapes.h"
#include "core/storage.h"
#include "tests/support/random.h"

// Arrays in any memory layout, surrounded and interspersed with guard bytes.
namespace qkv::test {

inline constexpr std::array kReals{DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                   DType::kFloat16};

enum class Layout {
  kContiguous,  // C order, 64-byte aligned
  kPermuted,    // Fortran order: the first axis is the fastest
  kSliced,      // every second element of every axis of a larger array
  kBroadcast,   // the first axis repeats (stride 0): for inputs only
  kNegative,    // C order with every axis walked backwards
  kOffset,      // C order, one element past an aligned address
};

inline constexpr std::array kLayouts{Layout::kContiguous, Layout::kPermuted, Layout::kSliced,
                                     Layout::kBroadcast,  Layout::kNegative, Layout::kOffset};
// Layouts in which every element has its own memory, as results need it.
inline constexpr std::array kOwnLayouts{Layout::kContiguous, Layout::kPermuted, Layout::kSliced,
                                        Layout::kNegative, Layout::kOffset};

inline std::string_view name_of(Layout layout) {
  switch (layout) {
    case Layout::kContiguous:
      return "contiguous";
    case Layout::kPermuted:
      return "permuted";
    case Layout::kSliced:
      return "sliced";
    case Layout::kBroadcast:
      return "broadcast";
    case Layout::kNegative:
      return "negative";
    case Layout::kOffset:
      return "offset";
  }
  return "?";
}

// An array of one dtype, shape and layout in its own memory. All bytes around the elements, and
// between them where the layout leaves gaps, hold poison: NaN for reals, random bits for other
// types, different in every array. Reading poison shows in the results; writing to it shows in
// intact().
class Guarded {
 public:
  // Makes an array whose elements are 0.
  Guarded(DType dtype, const Dims& shape, Layout layout)
      : Guarded(dtype, shape, layout, next_salt()) {}
  Guarded(Guarded&&) = default;
  Guarded& operator=(Guarded&&) = default;

  const View& view() const { return view_; }
  operator View() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view_; }  // NOLINT(google-explicit-constructor)

  // Fills with values in C order; where the first axis is repeated, the last values stay.
  Guarded& fill(std::span<const double> values) {
    std::size_t n = 0;
    return fill_by([&] { return values[n++]; });
  }
  Guarded& fill_normal(Random& random, double deviation = 1) {
    return fill_by([&] { return deviation * random.normal(); });
  }
  // Fills with random integers from low to high, inclusive.
  Guarded& fill_whole(Random& random, Index low, Index high) {
    return fill_by([&] { return static_cast<double>(random.whole(low, high)); });
  }

  // Succeeds if every byte outside the elements still holds its poison.
  testing::AssertionResult intact() const {
    const std::span<const std::uint8_t> now = memory_.values<std::uint8_t>();
    for (std::size_t n = 0; n < now.size(); ++n) {
      if (element_byte_[n] || now[n] == poison_[n]) continue;
      return testing::AssertionFailure()
             << "the byte " << static_cast<Index>(n) - first_byte_ << " bytes from the first "
             << "element of " << describe(view_) << " (strides " << to_string(view_.strides())
             << ") is no element's and was written";
    }
    return testing::AssertionSuccess();
  }

 private:
  // The bytes around the elements: a multiple of every alignment, and wider than any vector store.
  static constexpr Index kBand = 256;

  static std::uint64_t next_salt() {
    static std::uint64_t count = 0;
    return ++count;
  }

  // Strides in elements, and the first element's distance from the lowest one.
  struct Plan {
    Dims strides;
    Index first = 0;
  };

  static Plan plan(const Dims& shape, Layout layout) {
    Plan result{contiguous_strides(shape)};
    Dims& strides = result.strides;
    Index stride = 1;
    switch (layout) {
      case Layout::kContiguous:
        break;
      case Layout::kPermuted:
        for (int axis = 0; axis < shape.rank(); ++axis) {
          strides[axis] = stride;
          stride *= std::max<Index>(shape[axis], 1);
        }
        break;
      case Layout::kSliced:
        for (int axis = shape.rank() - 1; axis >= 0; --axis) {
          strides[axis] = 2 * stride;
          stride *= 2 * shape[axis] + 1;
        }
        break;
      case Layout::kBroadcast:
        if (shape.rank() > 0) strides[0] = 0;
        break;
      case Layout::kNegative:
        for (int axis = 0; axis < shape.rank(); ++axis) {
          result.first += std::max<Index>(shape[axis] - 1, 0) * strides[axis];
          strides[axis] = -strides[axis];
        }
        break;
      case Layout::kOffset:
        result.first = 1;
        break;
    }
    return result;
  }

  Guarded(DType dtype, const Dims& shape, Layout layout, std::uint64_t salt) {
    const Plan layout_plan = plan(shape, layout);
    const auto element = static_cast<Index>(size_of(dtype));
    Index last = layout_plan.first;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      last += std::max<Index>((shape[axis] - 1) * layout_plan.strides[axis], 0);
    }
    first_byte_ = kBand + layout_plan.first * element;
    memory_ = Tensor(DType::kUInt8, Dims(2 * kBand + (last + 1) * element));
    write_poison(dtype, salt);
    std::byte* first = reinterpret_cast<std::byte*>(memory_.values<std::uint8_t>().data());
    view_ = View(first + first_byte_, dtype, shape, layout_plan.strides);
    fill_by([] { return 0.0; });
  }

  void write_poison(DType dtype, std::uint64_t salt) {
    // The generator is Knuth's MMIX, modulo 2^64, whose high bits are the good ones. A Mersenne
    // twister takes longer than many of the calls that use these arrays.
    std::linear_congruential_engine<std::uint64_t, 6364136223846793005, 1442695040888963407, 0>
        random(salt);
    const std::span<std::uint8_t> bytes = memory_.values<std::uint8_t>();
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 56);
    if (is_real(dtype) || dtype == DType::kComplex128) write_nans(bytes, dtype);
    poison_.assign(bytes.begin(), bytes.end());
    element_byte_.assign(bytes.size(), false);
  }

  // Numbers are little-endian: the exponent is in the last two bytes. If its bits and the highest
  // bit of the mantissa are 1, the value is a quiet NaN whatever the other bits.
  static void write_nans(std::span<std::uint8_t> bytes, DType dtype) {
    const std::size_t size = dtype == DType::kComplex128 ? sizeof(double) : size_of(dtype);
    const std::uint8_t second = dtype == DType::kFloat16    ? 0
                                : dtype == DType::kFloat32  ? 0xC0
                                : dtype == DType::kBFloat16 ? 0xC0
                                                            : 0xF8;
    for (std::size_t end = size; end <= bytes.size(); end += size) {
      bytes[end - 1] |= 0x7F;
      bytes[end - 2] |= second;
    }
  }

  template <class F>
  Guarded& fill_by(const F& next) {
    core::for_each_offset<1>(
        view_.shape(), {view_.strides()}, [&](const std::array<Index, 1>& offset, const Dims&) {
          core::store(view_.dtype(), view_.data(), offset[0], static_cast<double>(next()));
          const auto size = static_cast<Index>(size_of(view_.dtype()));
          for (Index byte = 0; byte < size; ++byte) {
            element_byte_[static_cast<std::size_t>(first_byte_ + offset[0] * size + byte)] = true;
          }
        });
    return *this;
  }

  Tensor memory_;
  std::vector<std::uint8_t> poison_;
  std::vector<bool> element_byte_;
  Index first_byte_ = 0;
  View view_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_ARRAYS_H_
