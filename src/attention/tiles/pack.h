// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_PACK_H_
#define QKV_ATTENTION_TILES_PACK_H_

#include <algorithm>
#include <cstring>

#include "attention/tiles/call.h"
#include "core/head_rows.h"

// Functions that pack rows of keys, of values (for gradients) or of parameters into panels
// [width][kPanel].
namespace qkv::attn {

// Packs `keys` rows of x, `width` channels each, into a panel: transposed, with zeros behind the
// last row. The first row begins at element `offset`, and rows are one row stride apart.
template <class T>
void pack_panel(const FusedCall<T>& call, const Operand& x, Index offset, Index keys, Index width,
                T* panel) {
  call.stop();
  if (is_readable<T>(x)) return call.kernels.pack_panel(stored_rows(x, offset), keys, width, panel);
  if (call.in_words) {
    const auto row = [&](Index n) { return offset + n * x.row_stride; };
    return pack_strided_words(x, row, keys, width, panel);
  }
  for (Index c = 0; c < width; ++c) {
    T* column = panel + c * kPanel;
    load_values(x, offset + c * x.col_stride, x.row_stride, keys, column);
    std::fill(column + keys, column + kPanel, T(0));
  }
}

// Packs rows j .. j + keys - 1 of a head into a panel, as pack_panel does; the rows may lie in
// several pages.
template <class T>
void pack_rows(const FusedCall<T>& call, const Operand& x, const core::HeadRows& rows, Index j,
               Index keys, Index width, T* panel) {
  if (rows.run(j, keys) == keys) return pack_panel(call, x, rows.offset(j), keys, width, panel);
  call.stop();
  if (call.in_words && !is_readable<T>(x)) {
    return pack_strided_words(
        x, [&](Index n) { return rows.offset(j + n); }, keys, width, panel);
  }
  if (!is_readable<T>(x)) {
    for (Index n = 0, count = 0; n < keys; n += count) {
      count = rows.run(j + n, keys - n);
      const Index first = rows.offset(j + n);
      for (Index c = 0; c < width; ++c) {
        load_values(x, first + c * x.col_stride, x.row_stride, count, panel + c * kPanel + n);
      }
    }
    for (Index c = 0; c < width; ++c) {
      std::fill(panel + c * kPanel + keys, panel + (c + 1) * kPanel, T(0));
    }
    return;
  }
  // Copies kChannels channels of all rows into one contiguous array, then packs them.
  constexpr Index kChannels = 64;
  alignas(64) std::byte together[kPanel * kChannels * sizeof(T)];
  for (Index c = 0; c < width; c += kChannels) {
    const Index count = std::min(kChannels, width - c);
    const Index bytes = core::bytes_of(x.dtype, count);
    for (Index n = 0; n < keys; ++n) {
      std::memcpy(
          together + n * bytes,
          static_cast<const std::byte*>(x.data) + core::bytes_of(x.dtype, rows.offset(j + n) + c),
          static_cast<std::size_t>(bytes));
    }
    const Index row = call.in_words ? c / 2 : c;
    call.kernels.pack_panel({together, x.dtype, count}, keys, count, panel + row * kPanel);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_PACK_H_
