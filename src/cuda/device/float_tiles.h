// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FLOAT_TILES_H_
#define QKV_CUDA_DEVICE_FLOAT_TILES_H_

#include <cstdint>

#include "cuda/device/arrays.h"
#include "cuda/device/float_shape.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// Tiles of float32: products of rows with rows, and of tiles of pairs with rows. A thread holds a
// quarter of the columns of two rows of a tile of pairs, in the layout of ScoreTile
// (forward_tiles.h). Every sum has one fixed order, and tensor cores are not used.
namespace qkv::cuda {

// ---- rows -------------------------------------------------------------------------------------

struct FloatRows {
  const float* data;
  std::int64_t row;
  std::int64_t col;
};

QKV_DEVICE FloatRows float_rows(const ForwardArguments& a, const DeviceArray& x, int b, int head,
                                std::int64_t first) {
  return {static_cast<const float*>(x.data) + offset_of(a, x, b, head) + first * x.row, x.row,
          x.col};
}
QKV_DEVICE float& number_of(const FloatRows& x, int row, int c) {
  return const_cast<float*>(x.data)[row * x.row + c * x.col];
}

// Copies channels c0 .. c0+kFloatChunk-1 of kCount rows, from row `first` on, to shared memory.
// place(row, c) is the address of an element there. Rows from `limit` on, and channels from `width`
// on, become 0.
template <class Shape, int kCount, class Place>
QKV_DEVICE void load_block(const FloatRows& x, int first, int limit, int c0, int width,
                           const Place& place) {
  static_assert(Shape::kThreads % kFloatChunk == 0);
  const int c = thread_index() % kFloatChunk;
  QKV_ROLLED
  for (int row = thread_index() / kFloatChunk; row < kCount; row += Shape::kThreads / kFloatChunk) {
    float value = 0;
    if (first + row < limit && c0 + c < width) value = number_of(x, first + row, c0 + c);
    store_shared(place(row, c), float_to_bits(value));
  }
}

// The address in shared memory of channel c of a row, in a tile [rows, channels].
template <class Shape>
QKV_DEVICE std::uint32_t row_place(std::uint32_t tile, int row, int c) {
  return tile + static_cast<std::uint32_t>(row * Shape::kLeftPitch + c * 4);
}
// The index of key j in a row of a tile [channels, keys], whose keys are ordered so that a thread
// reads its own keys four at a time.
QKV_DEVICE int key_place(int j) {
  const int own = j / 8 * 2 + j % 2;  // index among the keys of lanes with lane % 4 = j / 2 % 4
  return own / 4 * 16 + j / 2 % 4 * 4 + own % 4;
}
template <class Shape>
QKV_DEVICE std::uint32_t column_place(std::uint32_t tile, int key, int c) {
  return tile + static_cast<std::uint32_t>(c * Shape::kRightPitch + key_place(key) * 4);
}

// The element in row `half` and column part * 4 + n of the rows and columns that a thread holds.
template <class Shape>
QKV_DEVICE float& tile_element(ScoreTile<Shape>& s, int half, int part, int n) {
  return s.at[0][part * 2 + n / 2][2 * half + n % 2];
}

// Adds the products of a chunk of channels in shared memory to s; channels ascend.
template <class Shape>
QKV_DEVICE void add_row_products(std::uint32_t left_tile, std::uint32_t right_tile,
                                 ScoreTile<Shape>& s) {
  const std::uint32_t own_row = row_place<Shape>(left_tile, row_in_block<Shape>(0, 0), 0);
  const auto own_key = right_tile + static_cast<std::uint32_t>(thread_index() % 4 * 16);
  QKV_ROLLED
  for (int c = 0; c < kFloatChunk; c += 4) {
    const auto at = static_cast<std::uint32_t>(c * 4);
    const Words4 left[2] = {load_shared_words(own_row + at),
                            load_shared_words(own_row + 8 * Shape::kLeftPitch + at)};
    QKV_UNROLL
    for (int n = 0; n < 4; ++n) {
      const std::uint32_t row = own_key + static_cast<std::uint32_t>((c + n) * Shape::kRightPitch);
      QKV_UNROLL
      for (int part = 0; part < Shape::kKeys / 16; ++part) {
        const Words4 right = load_shared_words(row + static_cast<std::uint32_t>(part * 64));
        QKV_UNROLL
        for (int m = 0; m < 4; ++m) {
          QKV_UNROLL
          for (int half = 0; half < 2; ++half) {
            float& x = tile_element<Shape>(s, half, part, m);
            x = fused(bits_to_float(left[half].w[n]), bits_to_float(right.w[m]), x);
          }
        }
      }
    }
  }
}

// Adds the tile `from` to the tile `to`, and clears `from`.
template <class Shape>
QKV_DEVICE void add_tile(ScoreTile<Shape>& from, ScoreTile<Shape>& to) {
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 4; ++e) {
      to.at[0][n][e] = rounded_sum(to.at[0][n][e], from.at[0][n][e]);
      from.at[0][n][e] = 0;
    }
  }
}

// Computes in `s` the products of the block's queries in `left` with kKeys keys in `right`, from
// key first_key on. Channels ascend, in blocks of 64 (core::kChannelBlock). first() is called once,
// when all threads have finished with what was in shared memory before.
template <class Shape, class First>
QKV_DEVICE void multiply_float_rows(const FloatRows& left, const FloatRows& right,
                                    const BlockPlace& place, int first_key, int width,
                                    const First& first, ScoreTile<Shape>& s) {
  constexpr int kBlock = 64;
  static_assert(kBlock % kFloatChunk == 0);
  ScoreTile<Shape> sum;
  clear_sums(s.at);
  clear_sums(sum.at);
  sync_threads();
  first();
  QKV_ROLLED
  for (int c0 = 0; c0 < width; c0 += kFloatChunk) {
    if (c0 > 0) sync_threads();  // all have finished with the previous channels
    load_block<Shape, Shape::kRows>(left, place.first, place.Tq, c0, width, [](int row, int c) {
      return row_place<Shape>(Shape::kLeft, row, c);
    });
    load_block<Shape, Shape::kKeys>(right, first_key, place.Tk, c0, width, [](int key, int c) {
      return column_place<Shape>(Shape::kRight, key, c);
    });
    sync_threads();
    add_row_products<Shape>(Shape::kLeft, Shape::kRight, sum);
    if ((c0 + kFloatChunk) % kBlock == 0 || c0 + kFloatChunk >= width) add_tile<Shape>(sum, s);
  }
}

// ---- gradients of pairs -------------------------------------------------------------------------

using PairTile = ScoreTile<FloatGradientShape>;

// Whether a weight is that of a masked pair.
QKV_DEVICE bool is_masked_weight(float w) {
  return float_to_bits(w) == float_to_bits(masked_weight());
}

// Replaces products, or sums over units, in `w` by weights, and dout . v in `ds` by the gradients
// of these products or sums, as make_gradients() does, but with the factor `scale`. Masked pairs
// become -0 in `w` and `ds`; other elements of `ds` are never -0. Returns whether this thread has a
// masked pair.
QKV_DEVICE bool make_pair_gradients(const ForwardArguments& a, const BlockPlace& place,
                                    const BlockBounds& bounds, int first_key,
                                    const GradientRows<FloatGradientShape>& rows, float factor,
                                    PairTile& w, PairTile& ds) {
  using Shape = FloatGradientShape;
  const bool masks = make_gradients<Shape>(a, place, is_inside<Shape>(place, bounds, first_key),
                                           first_key, rows, factor, w, ds);
  for_each_score<Shape>(ds, [&](int r, int n, int e, float& x) {
    const bool masked = is_masked_weight(w.at[0][n][r * 2 + e]);
    x = masked ? masked_weight() : rounded_sum(rounded_product(x, a.scale), 0);
  });
  return masks;
}

// Sets products[half] to dout . out of row `half` of this thread's rows. The four threads that
// share a row get the same number.
QKV_DEVICE void multiply_outputs(const ForwardArguments& a, const DeviceArray& dout,
                                 const BlockPlace& place, float (&products)[2]) {
  using Shape = FloatGradientShape;
  const FloatRows left = float_rows(a, dout, place.b, place.h, place.q0);
  const FloatRows right = float_rows(a, a.out, place.b, place.h, place.q0);
  const int width = dout.data == nullptr ? 0 : a.E;
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = place.first + row_in_block<Shape>(0, half);
    float sum = 0;
    if (i < place.Tq) {
      QKV_ROLLED
      for (int c = thread_index() % 4; c < width; c += 4) {
        sum = fused(number_of(left, i, c), number_of(right, i, c), sum);
      }
    }
    sum = rounded_sum(sum, exchange(sum, 1));
    products[half] = rounded_sum(sum, exchange(sum, 2));
  }
}

// ---- products of pairs with rows ----------------------------------------------------------------

// The address of an element of the tile of pairs in shared memory. The tile overwrites rows or
// projections that have been used; add_pair_products() sums over the tile's rows.
QKV_DEVICE std::uint32_t pair_place(int row, int column) {
  using Shape = FloatGradientShape;
  return Shape::kPairs + static_cast<std::uint32_t>(row * Shape::kPairPitch + column * 4);
}
enum class Summed { kQueries, kKeys };

// Writes this thread's part of x to the tile of pairs, with queries or keys as rows (see kOver).
template <Summed kOver>
QKV_DEVICE void store_pair_tile(const PairTile& x) {
  for_each_pair<FloatGradientShape>([&](int m, int half, int n, int query, int key) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t to =
          kOver == Summed::kQueries ? pair_place(query, key + e) : pair_place(key + e, query);
      store_shared(to, float_to_bits(x.at[m][n][2 * half + e]));
    }
  });
}
// Reads the tile of pairs, whose rows are queries, into x with rows and columns exchanged.
QKV_DEVICE void load_transposed_tile(PairTile& x) {
  using Shape = FloatGradientShape;
  static_assert(Shape::kRows == Shape::kKeys);
  for_each_pair<Shape>([&](int m, int half, int n, int key, int query) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      x.at[m][n][2 * half + e] = bits_to_float(load_shared(pair_place(query + e, key)));
    }
  });
}

// The rows first .. first+63, as far as they are below `limit`.
struct RowRange {
  int first;
  int limit;
};

// sums += p^T x, for the tile p of pairs in shared memory, the rows `from` of x (one for each row
// of p) and the rows `to` of `sums` (one for each column of p); rows of p ascend. With kMasks,
// masked pairs, whose x may be infinite or NaN, add nothing.
template <bool kMasks>
QKV_DEVICE void add_pair_products(const FloatRows& x, const RowRange& from, const RowRange& to,
                                  int width, const FloatRows& sums) {
  using Shape = FloatGradientShape;
  const int own_row = thread_index() / 8 * 4;
  const int own_channel = thread_index() % 8 * 4;
  static_assert(Shape::kThreads / 8 * 4 == Shape::kKeys && kFloatChunk == 32);
  const auto place = [](int row, int c) { return row_place<Shape>(Shape::kDout, row, c); };
  QKV_ROLLED
  for (int c0 = 0; c0 < width; c0 += kFloatChunk) {
    sync_threads();  // pairs are there, and all have finished with the previous channels
    load_block<Shape, Shape::kRows>(x, from.first, from.limit, c0, width, place);
    sync_threads();
    float products[4][4];
    clear_sums(products);
    QKV_ROLLED
    for (int n = 0; n < Shape::kRows; ++n) {
      const Words4 pair = load_shared_words(pair_place(n, own_row));
      const Words4 right = load_shared_words(place(n, own_channel));
      QKV_UNROLL
      for (int r = 0; r < 4; ++r) {
        if (kMasks && is_masked_weight(bits_to_float(pair.w[r]))) continue;
        QKV_UNROLL
        for (int c = 0; c < 4; ++c) {
          products[r][c] =
              fused(bits_to_float(pair.w[r]), bits_to_float(right.w[c]), products[r][c]);
        }
      }
    }
    QKV_UNROLL
    for (int r = 0; r < 4; ++r) {
      QKV_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int row = to.first + own_row + r;
        const int channel = c0 + own_channel + c;
        if (row >= to.limit || channel >= width) continue;
        float& sum = number_of(sums, row, channel);
        sum = rounded_sum(sum, products[r][c]);
      }
    }
  }
}
QKV_DEVICE void add_pair_products(bool masks, const FloatRows& x, const RowRange& from,
                                  const RowRange& to, int width, const FloatRows& sums) {
  if (masks) {
    add_pair_products<true>(x, from, to, width, sums);
  } else {
    add_pair_products<false>(x, from, to, width, sums);
  }
}

// Calls f(row, channel) for this thread's share of the elements of `rows`.
template <class F>
QKV_DEVICE void for_each_element(const RowRange& rows, int width, const F& f) {
  using Shape = FloatGradientShape;
  QKV_ROLLED
  for (int row = thread_index() / kFloatChunk; row < Shape::kRows;
       row += Shape::kThreads / kFloatChunk) {
    if (rows.first + row >= rows.limit) return;
    QKV_ROLLED
    for (int c = thread_index() % kFloatChunk; c < width; c += kFloatChunk) {
      f(rows.first + row, c);
    }
  }
}

// Sets the sums of `rows` to 0.
QKV_DEVICE void clear_elements(const RowRange& rows, int width, const FloatRows& sums) {
  for_each_element(rows, width, [&](int row, int c) { number_of(sums, row, c) = 0; });
}

// Stores the sums of `rows`, times `scale`, in the gradient `to`; with `adds`, adds them to it.
QKV_DEVICE void finish_elements(const RowRange& rows, int width, const FloatRows& sums, float scale,
                                bool adds, const FloatRows& to) {
  for_each_element(rows, width, [&](int row, int c) {
    const float sum = rounded_product(number_of(sums, row, c), scale);
    float& x = number_of(to, row, c);
    x = adds ? rounded_sum(sum, x) : sum;
  });
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FLOAT_TILES_H_
