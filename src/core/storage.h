// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_STORAGE_H_
#define QKV_CORE_STORAGE_H_

#include <complex>
#include <type_traits>

#include <qkv/dtype.h>
#include <qkv/view.h>

#include "core/floats.h"
#include "core/half_floats.h"

// Loads convert from a storage type to the accumulator's type, and stores convert back.
// docs/contributing/recipes.md lists what a new storage type needs.
namespace qkv::core {

template <class T>
inline constexpr bool kIsComplex = false;
template <class T>
inline constexpr bool kIsComplex<std::complex<T>> = true;

// Converts one stored value to a T. Narrow reals go through float; a complex value read as a real T
// loses its imaginary part.
template <class T, class Stored>
T to_accumulator(const Stored& value) {
  if constexpr (std::is_same_v<T, Stored>) {
    return value;
  } else if constexpr (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Float16>) {
    return static_cast<T>(to_float(value));
  } else if constexpr (kIsComplex<Stored>) {
    return static_cast<T>(value.real());
  } else if constexpr (kIsComplex<T>) {
    return T(static_cast<typename T::value_type>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Rounds a T once to the storage type (reals: to nearest, ties to even).
template <class Stored, class T>
Stored from_accumulator(const T& value) {
  if constexpr (std::is_same_v<T, Stored>) {
    return value;
  } else if constexpr (kIsComplex<T>) {
    return from_accumulator<Stored>(value.real());
  } else if constexpr (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Float16>) {
    if constexpr (std::is_same_v<T, double>) {
      return from_float<Stored>(round_to_odd(value));
    } else {
      return from_float<Stored>(static_cast<float>(value));
    }
  } else if constexpr (kIsComplex<Stored>) {
    return Stored(static_cast<double>(value));
  } else {
    return static_cast<Stored>(value);
  }
}

// Calls f.operator()<T>(), T = double for kFloat64 and float for any other type.
template <class F>
void dispatch(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

// Calls f with a null pointer of the C++ type of `dtype`: visit_dtype(d, [](auto* tag) {...}).
// Returns false for kNone, and for kQ8, which has no type of single numbers.
template <class F>
bool visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
// NOLINTBEGIN(bugprone-macro-parentheses): `type` is a type
#define QKV_VISIT(name, type, text) \
  case DType::name:                 \
    f(static_cast<type*>(nullptr)); \
    return true;
    QKV_FOR_EACH_DTYPE(QKV_VISIT)
#undef QKV_VISIT
      // NOLINTEND(bugprone-macro-parentheses)
    case DType::kQ8:
    case DType::kNone:
      break;
  }
  return false;
}

// Returns number `offset` of contiguous q8 blocks: the product of scale and integer, which is
// exact. A product of -0 becomes +0, and the number is NaN if the scale is infinite or NaN,
// whatever the integer is.
inline float load_q8(const void* data, Index offset) {
  static_assert(BlockQ8::kNumbers == 1 << 5);
  const BlockQ8& block = static_cast<const BlockQ8*>(data)[offset >> 5];
  const float scale = to_float(block.scale);
  return scale * static_cast<float>(block.values[offset & 31]) + (scale - scale);
}

// The bytes of n contiguous numbers; for q8 n is a multiple of a block's numbers.
constexpr Index bytes_of(DType dtype, Index n) {
  const auto size = static_cast<Index>(size_of(dtype));
  return dtype == DType::kQ8 ? n / BlockQ8::kNumbers * size : n * size;
}

// Loads the number at `offset`, which counts numbers for q8 too.
template <class T>
T load(DType dtype, const void* data, Index offset) {
  if (dtype == dtype_of<T>) return static_cast<const T*>(data)[offset];
  if (dtype == DType::kQ8) return to_accumulator<T>(load_q8(data, offset));
  T value{};
  visit_dtype(dtype, [&]<class Stored>(Stored*) {
    value = to_accumulator<T>(static_cast<const Stored*>(data)[offset]);
  });
  return value;
}

template <class T>
void store(DType dtype, void* data, Index offset, const T& value) {
  if (dtype == dtype_of<T>) {
    static_cast<T*>(data)[offset] = value;
    return;
  }
  visit_dtype(dtype, [&]<class Stored>(Stored*) {
    static_cast<Stored*>(data)[offset] = from_accumulator<Stored>(value);
  });
}

}  // namespace qkv::core

#endif  // QKV_CORE_STORAGE_H_
