// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_AT_H_
#define QKV_AT_H_

#include <cstdint>

#include <qkv/view.h>

namespace qkv {

// A score's position: batch entry (the sequence, when packed), query head, query, key; counted
// from 0 within their sequence. 32 bits, because such indices convert to float at vector speed.
struct At {
  std::int32_t b = 0;
  std::int32_t h = 0;
  std::int32_t i = 0;
  std::int32_t j = 0;
};

namespace detail {

// A rectangle of scores of one (b, h), with element (0, 0) at `at`. `slopes`, if not null,
// holds d score / d raw score so far and is multiplied by the function's derivative.
template <class T>
struct ScoreTile {
  At at;
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  Index row_stride = 0;
  T* scores = nullptr;
  T* slopes = nullptr;
};

// Likewise for a mask: `allowed` (0 or 1) is and-ed with the user's answer.
struct MaskTile {
  At at;
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  Index row_stride = 0;
  std::uint8_t* allowed = nullptr;
};

inline At shifted(const At& at, std::int32_t row, std::int32_t col) {
  return {at.b, at.h, at.i + row, at.j + col};
}

}  // namespace detail
}  // namespace qkv

#endif  // QKV_AT_H_
