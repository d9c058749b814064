// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ARRAYS_H_
#define QKV_CUDA_DEVICE_ARRAYS_H_

#include "cuda/device/arguments.h"
#include "cuda/device/words.h"

// Functions that read single numbers of arrays of any type, and that find the rows of a head.
namespace qkv::cuda {

QKV_DEVICE float minus_infinity() { return bits_to_float(0xFF800000U); }

template <class T>
QKV_DEVICE T number(const void* data, std::int64_t offset) {
  return static_cast<const T*>(data)[offset];
}

QKV_DEVICE float real_at(Element type, const void* data, std::int64_t offset) {
  switch (type) {
    case Element::kBFloat16:
      return widened(BFloat16Tiles{}, number<std::uint16_t>(data, offset));
    case Element::kFloat16:
      return widened(Float16Tiles{}, number<std::uint16_t>(data, offset));
    default:
      return number<float>(data, offset);
  }
}

QKV_DEVICE std::int64_t integer_at(Element type, const void* data, std::int64_t offset) {
  switch (type) {
    case Element::kInt8:
      return number<std::int8_t>(data, offset);
    case Element::kUInt8:
      return number<std::uint8_t>(data, offset);
    case Element::kInt16:
      return number<std::int16_t>(data, offset);
    case Element::kUInt16:
      return number<std::uint16_t>(data, offset);
    case Element::kInt32:
      return number<std::int32_t>(data, offset);
    case Element::kUInt32:
      return number<std::uint32_t>(data, offset);
    default:
      return number<std::int64_t>(data, offset);  // a uint64 of 2^63 or more becomes negative
  }
}

// The offset, in elements, of head h of batch entry b, where b counts through the batch axes in
// row-major order. An array has either one stride for all batch axes (`entry`) or one for each
// (`batch`); the strides that it does not use are 0.
QKV_DEVICE std::int64_t offset_of(const ForwardArguments& a, const DeviceArray& x, int b, int h) {
  std::int64_t offset = b * x.entry + h * x.head;
  auto rest = static_cast<unsigned>(b);
  for (int axis = a.batch_axes - 1; axis >= 0; --axis) {
    const auto size = static_cast<unsigned>(a.batch_sizes[axis]);
    offset += (rest % size) * x.batch[axis];
    rest /= size;
  }
  return offset;
}

// Stores and loads a number of 8 bytes in shared memory.
QKV_DEVICE void store_long(std::uint32_t to, std::uint64_t x) {
  store_shared(to, static_cast<std::uint32_t>(x));
  store_shared(to + 4, static_cast<std::uint32_t>(x >> 32));
}
QKV_DEVICE std::uint64_t load_long(std::uint32_t from) {
  return load_shared(from) | static_cast<std::uint64_t>(load_shared(from + 4)) << 32;
}

struct alignas(16) FourFloats {
  float x[4];
};

// Rows of one head, of 16-bit numbers: the address of the first row, the strides in elements, and
// `vectors` as in DeviceArray.
struct DeviceRows {
  const std::uint16_t* data;
  std::int64_t row;
  std::int64_t col;
  bool vectors;
};

QKV_DEVICE DeviceRows rows_of(const ForwardArguments& a, const DeviceArray& x, int b, int head,
                              std::int64_t first) {
  return {static_cast<const std::uint16_t*>(x.data) + offset_of(a, x, b, head) + first * x.row,
          x.row, x.col, x.vectors};
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ARRAYS_H_
