// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DTYPE_H_
#define QKV_DTYPE_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <qkv/export.h>

namespace qkv {

// Brain float, the upper half of a float32. Conversion to it rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  QKV_API explicit BFloat16(float value) noexcept;
  QKV_API explicit operator float() const noexcept;
  static constexpr BFloat16 from_bits(std::uint16_t bits) noexcept { return BFloat16(bits, 0); }

 private:
  constexpr BFloat16(std::uint16_t b, int) noexcept : bits(b) {}
};

// IEEE 754 binary16. Conversion to it rounds to nearest, ties to even; overflow gives infinity.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  QKV_API explicit Float16(float value) noexcept;
  QKV_API explicit operator float() const noexcept;
  static constexpr Float16 from_bits(std::uint16_t bits) noexcept { return Float16(bits, 0); }

 private:
  constexpr Float16(std::uint16_t b, int) noexcept : bits(b) {}
};

// A block of 32 numbers in 34 bytes, in the layout of ggml's Q8_0: number n is scale * values[n],
// which a float32 holds exactly. Only keys and values can have this type (qkv/q8.h); shapes and
// strides of such arrays count blocks, not numbers.
struct BlockQ8 {
  static constexpr int kNumbers = 32;
  Float16 scale;
  std::int8_t values[kNumbers] = {};
};
static_assert(sizeof(BlockQ8) == 34 && alignof(BlockQ8) == 2);

// The one list of storage types of single numbers: enumerator, C++ type, name in messages.
// complex128 exists only for gradient checks by complex step on the reference; the public functions
// reject it.
#define QKV_FOR_EACH_DTYPE(X)               \
  X(kFloat64, double, "float64")            \
  X(kFloat32, float, "float32")             \
  X(kBFloat16, ::qkv::BFloat16, "bfloat16") \
  X(kFloat16, ::qkv::Float16, "float16")    \
  X(kBool, bool, "bool")                    \
  X(kInt8, std::int8_t, "int8")             \
  X(kInt16, std::int16_t, "int16")          \
  X(kInt32, std::int32_t, "int32")          \
  X(kInt64, std::int64_t, "int64")          \
  X(kUInt8, std::uint8_t, "uint8")          \
  X(kUInt16, std::uint16_t, "uint16")       \
  X(kUInt32, std::uint32_t, "uint32")       \
  X(kUInt64, std::uint64_t, "uint64")       \
  X(kComplex128, std::complex<double>, "complex128")

// The storage type of an array. kNone marks an absent view; kQ8 is the type of BlockQ8.
enum class DType : std::uint8_t {
  kNone = 0,
#define QKV_DTYPE_ENUMERATOR(name, type, text) name,
  QKV_FOR_EACH_DTYPE(QKV_DTYPE_ENUMERATOR)
#undef QKV_DTYPE_ENUMERATOR
      kQ8,
};

// The DType of a C++ type: dtype_of<float> == DType::kFloat32. A type without a DType does not
// compile.
template <class T>
struct DTypeOf;
#define QKV_DTYPE_OF(name, type, text)           \
  template <>                                    \
  struct DTypeOf<type> {                         \
    static constexpr DType kValue = DType::name; \
  };
QKV_FOR_EACH_DTYPE(QKV_DTYPE_OF)
#undef QKV_DTYPE_OF
template <>
struct DTypeOf<BlockQ8> {
  static constexpr DType kValue = DType::kQ8;
};
// std::int64_t is either `long` or `long long`. The other one is a type of its own, of 32 or 64
// bits, and gets its DType here.
namespace detail {
using OtherLong = std::conditional_t<std::is_same_v<std::int64_t, long>, long long, long>;
using OtherULong = std::conditional_t<std::is_same_v<std::uint64_t, unsigned long>,
                                      unsigned long long, unsigned long>;
}  // namespace detail
template <>
struct DTypeOf<detail::OtherLong> {
  static constexpr DType kValue = sizeof(detail::OtherLong) == 8 ? DType::kInt64 : DType::kInt32;
};
template <>
struct DTypeOf<detail::OtherULong> {
  static constexpr DType kValue = sizeof(detail::OtherULong) == 8 ? DType::kUInt64 : DType::kUInt32;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::kValue;

// The size of one element in bytes. An element of kQ8 is a block; kNone has size 0.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
#define QKV_DTYPE_SIZE(name, type, text) \
  case DType::name:                      \
    return sizeof(type);
    QKV_FOR_EACH_DTYPE(QKV_DTYPE_SIZE)
#undef QKV_DTYPE_SIZE
    case DType::kQ8:
      return sizeof(BlockQ8);
    case DType::kNone:
      break;
  }
  return 0;
}

// The name used in messages, such as "float32"; kNone is "none".
constexpr std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
#define QKV_DTYPE_NAME(name, type, text) \
  case DType::name:                      \
    return text;
    QKV_FOR_EACH_DTYPE(QKV_DTYPE_NAME)
#undef QKV_DTYPE_NAME
    case DType::kQ8:
      return "q8";
    case DType::kNone:
      break;
  }
  return "none";
}

// True for float64, float32, bfloat16 and float16.
constexpr bool is_real(DType dtype) noexcept {
  return dtype >= DType::kFloat64 && dtype <= DType::kFloat16;
}

// True for the eight integer types, which do not include bool.
constexpr bool is_integer(DType dtype) noexcept {
  return dtype >= DType::kInt8 && dtype <= DType::kUInt64;
}

// The accumulator type: float64 for float64, float32 for the other real types, else the type
// itself.
constexpr DType accumulator_of(DType dtype) noexcept {
  return dtype == DType::kFloat64 || !is_real(dtype) ? dtype : DType::kFloat32;
}

}  // namespace qkv

#endif  // QKV_DTYPE_H_
