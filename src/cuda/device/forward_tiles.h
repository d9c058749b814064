// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_TILES_H_
#define QKV_CUDA_DEVICE_FORWARD_TILES_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/words.h"

// Tiles of q, k and v in shared memory, their products, and the softmax between the products.
namespace qkv::cuda {

// ---- tiles of q, k and v ----------------------------------------------------------------------

QKV_DEVICE std::uint32_t gathered_pair(const DeviceRows& x, std::int64_t row, int c, int width) {
  std::uint32_t pair = 0;
  if (c < width) pair = x.data[row + c * x.col];
  if (c + 1 < width) pair |= static_cast<std::uint32_t>(x.data[row + (c + 1) * x.col]) << 16;
  return pair;
}

// Copies kCount rows, from row `first` on, to shared memory. Rows from `limit` on, and channels
// from `width` on, become 0.
template <class Shape, int kCount>
QKV_DEVICE void load_rows(std::uint32_t tile, const DeviceRows& x, int first, int limit,
                          int width) {
  constexpr int kChunks = Shape::kWidth / 8;
  constexpr int kStep = Shape::kThreads / kChunks;  // rows that the threads copy at a time
  constexpr int kEach = kCount / kStep;
  static_assert(kEach * kStep == kCount && kStep * kChunks == Shape::kThreads);
  const int t = thread_index();
  const int chunk = t % kChunks;
  if (x.vectors) {
    const std::uint16_t* from = x.data + (first + t / kChunks) * x.row + chunk * 8;
    QKV_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int row = n * kStep + t / kChunks;
      copy_16(shared_chunk<Shape>(tile, row, chunk), from,
              first + row < limit && chunk * 8 < width);
      from += kStep * x.row;
    }
    return;
  }
  QKV_ROLLED
  for (int n = 0; n < kEach; ++n) {
    const int row = n * kStep + t / kChunks;
    Words4 words{};
    if (first + row < limit) {
      const std::int64_t start = (first + row) * x.row;
      for (int w = 0; w < 4; ++w) words.w[w] = gathered_pair(x, start, chunk * 8 + 2 * w, width);
    }
    store_shared(shared_chunk<Shape>(tile, row, chunk), words);
  }
}

// The exponent bits of both halves of a pair, and the lowest exponent bit of both (exponent_one).
// In infinities and NaNs, all exponent bits are 1: adding the lowest carries into the sign bit.
QKV_DEVICE std::uint32_t exponent_bits(BFloat16Tiles) { return 0x7F807F80U; }
QKV_DEVICE std::uint32_t exponent_bits(Float16Tiles) { return 0x7C007C00U; }
QKV_DEVICE std::uint32_t exponent_one(BFloat16Tiles) { return 0x00800080U; }
QKV_DEVICE std::uint32_t exponent_one(Float16Tiles) { return 0x04000400U; }

// A word in which the sign bits of infinite and NaN halves of `pair` are 1, and other bits 0.
template <class Tiles>
QKV_DEVICE std::uint32_t non_finite_halves(std::uint32_t pair) {
  return ((pair & exponent_bits(Tiles{})) + exponent_one(Tiles{})) & 0x80008000U;
}

// Whether this thread's part of a tile of kCount rows holds an infinity or NaN.
template <class Shape, class Tiles, int kCount>
QKV_DEVICE bool has_non_finite(std::uint32_t tile) {
  constexpr int kEach = kCount * Shape::kPitch / 16 / Shape::kThreads;
  std::uint32_t found = 0;
  QKV_UNROLL
  for (int n = 0; n < kEach; ++n) {
    const Words4 x = load_shared_words(tile + (n * Shape::kThreads + thread_index()) * 16);
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) found |= non_finite_halves<Tiles>(x.w[w]);
  }
  return found != 0;
}

// Sets the infinities and NaNs of this thread's part of a tile of kCount rows to 0.
template <class Shape, class Tiles, int kCount>
QKV_DEVICE void clear_non_finite(std::uint32_t tile) {
  constexpr int kEach = kCount * Shape::kPitch / 16 / Shape::kThreads;
  QKV_ROLLED
  for (int n = 0; n < kEach; ++n) {
    const std::uint32_t at = tile + (n * Shape::kThreads + thread_index()) * 16;
    Words4 x = load_shared_words(at);
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t halves = non_finite_halves<Tiles>(x.w[w]);
      if ((halves & 0x8000U) != 0) x.w[w] &= 0xFFFF0000U;
      if ((halves & 0x80000000U) != 0) x.w[w] &= 0xFFFFU;
    }
    store_shared(at, x);
  }
}

// ---- what a thread holds ------------------------------------------------------------------------

// A thread's scores, later weights, of a tile: at[m][n] are those in row m and column n of the
// tiles of 16 queries x 8 keys.
template <class Shape>
struct ScoreTile {
  float at[Shape::kRowTiles][Shape::kKeyTiles][4];
};

// Sums over keys, for each channel of a thread's rows.
template <class Shape>
using RowSums = float[Shape::kRowTiles][Shape::kChannelTiles][4];

// The softmax of a thread's rows so far: element 2 * t + half is of row lane / 4 + 8 * half of row
// tile t. `l` is the sum over the thread's own columns.
template <class Shape>
struct SoftmaxState {
  float m[2 * Shape::kRowTiles];
  float l[2 * Shape::kRowTiles];
};

// The softmax of a thread's rows with their weighted sums of values.
template <class Shape>
struct RowState : SoftmaxState<Shape> {
  RowSums<Shape> o;
};

template <int kCount>
QKV_DEVICE void clear_sums(float (&sums)[kCount][4]) {
  QKV_UNROLL
  for (int c = 0; c < kCount; ++c) {
    QKV_UNROLL
    for (int e = 0; e < 4; ++e) sums[c][e] = 0;
  }
}
template <int kRows, int kCount>
QKV_DEVICE void clear_sums(float (&sums)[kRows][kCount][4]) {
  QKV_UNROLL
  for (int m = 0; m < kRows; ++m) clear_sums(sums[m]);
}

template <class Shape>
QKV_DEVICE void clear_state(SoftmaxState<Shape>& state) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    state.m[r] = minus_infinity();
    state.l[r] = 0;
  }
}
template <class Shape>
QKV_DEVICE void clear_state(RowState<Shape>& state) {
  clear_state<Shape>(static_cast<SoftmaxState<Shape>&>(state));
  clear_sums(state.o);
}

// Calls f(r, n, e, x) for each of a thread's scores x: r is the row's index in SoftmaxState, and e
// is 0 or 1 for the thread's first or second column in column tile n. Rows ascend, then columns.
template <class Shape, class F>
QKV_DEVICE void for_each_score(ScoreTile<Shape>& s, const F& f) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) f(r, n, e, s.at[r / 2][n][r % 2 * 2 + e]);
    }
  }
}

template <class Shape>
QKV_DEVICE int row_in_block(int row_tile, int half) {
  const int t = thread_index();
  return t / kLanes * Shape::kWarpRows + row_tile * 16 + t % kLanes / 4 + 8 * half;
}

// ---- products ---------------------------------------------------------------------------------

// s = q k^T, for tiles of kRows rows q and kKeys rows k.
template <class Shape, class Tiles>
QKV_DEVICE void multiply_rows(std::uint32_t q_tile, std::uint32_t k_tile, ScoreTile<Shape>& s) {
  const int lane = thread_index() % kLanes;
  const int first_row = thread_index() / kLanes * Shape::kWarpRows;
  const std::uint32_t q_row = shared_chunk<Shape>(q_tile, first_row + lane % 16, lane / 16);
  const std::uint32_t k_row = shared_chunk<Shape>(k_tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  clear_sums(s.at);
  QKV_UNROLL
  for (int c = 0; c < Shape::kWidth / 16; ++c) {
    std::uint32_t q[Shape::kRowTiles][4];
    QKV_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      load_matrices(q[m], other_chunk(q_row, 2 * c) + m * 16 * Shape::kPitch);
    }
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; n += 2) {
      std::uint32_t k[4];
      load_matrices(k, other_chunk(k_row, 2 * c) + n * 8 * Shape::kPitch);
      QKV_UNROLL
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        multiply_add(Tiles{}, s.at[m][n], q[m], k[0], k[1]);
        multiply_add(Tiles{}, s.at[m][n + 1], q[m], k[2], k[3]);
      }
    }
  }
}

// The products of the tiles of queries and keys.
template <class Shape, class Tiles>
QKV_DEVICE void multiply_keys(ScoreTile<Shape>& s) {
  multiply_rows<Shape, Tiles>(Shape::kQ, Shape::kK, s);
}

// o += p v, for a tile of kKeys rows v.
template <class Shape, class Tiles>
QKV_DEVICE void add_products(const ScoreTile<Shape>& p, std::uint32_t v_tile, RowSums<Shape>& o) {
  const int lane = thread_index() % kLanes;
  const std::uint32_t v_row = shared_chunk<Shape>(v_tile, lane / 8 % 2 * 8 + lane % 8, lane / 16);
  QKV_UNROLL
  for (int j = 0; j < Shape::kKeys / 16; ++j) {
    std::uint32_t w[Shape::kRowTiles][4];
    QKV_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      QKV_UNROLL
      for (int part = 0; part < 4; ++part) {
        const float(&x)[4] = p.at[m][2 * j + part / 2];
        w[m][part] = rounded_pair(Tiles{}, x[part % 2 * 2], x[part % 2 * 2 + 1]);
      }
    }
    QKV_UNROLL
    for (int c = 0; c < Shape::kChannelTiles; c += 2) {
      std::uint32_t v[4];
      load_transposed(v, other_chunk(v_row, c) + j * 16 * Shape::kPitch);
      QKV_UNROLL
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        multiply_add(Tiles{}, o[m][c], w[m], v[0], v[1]);
        multiply_add(Tiles{}, o[m][c + 1], w[m], v[2], v[3]);
      }
    }
  }
}

// ---- softmax --------------------------------------------------------------------------------

// If |shift| is above this, where shift = factor m, the rounding of shift shows in weights
// exp2(factor s - shift). They are then computed as exp2(factor (s - m)), with one operation more.
inline constexpr float kLargeShift = 1024;

QKV_DEVICE bool is_large(float shift) { return shift > kLargeShift || shift < -kLargeShift; }

// Replaces scores by weights exp2(factor (s - m)) and updates m and l. A masked score is -inf and
// its weight is 0. The caller must multiply its own sums over earlier tiles by `shrink`. Returns
// whether an element of `shrink` is not 1.
template <class Shape>
QKV_DEVICE bool update_softmax(float factor, ScoreTile<Shape>& s, SoftmaxState<Shape>& state,
                               float (&shrink)[2 * Shape::kRowTiles]) {
  constexpr int kOwnRows = 2 * Shape::kRowTiles;
  float shift[kOwnRows];
  bool any_large = false;
  bool changes = false;
  QKV_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    const float before = state.m[r];
    float largest = before;
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
      const float(&x)[4] = s.at[r / 2][n];
      largest = max_of(largest, max_of(x[r % 2 * 2], x[r % 2 * 2 + 1]));
    }
    largest = max_of(largest, exchange(largest, 1));
    largest = max_of(largest, exchange(largest, 2));
    state.m[r] = largest;
    // Without a live key the maximum is -inf, and all weights are exp(-inf).
    shift[r] = largest == minus_infinity() ? 0.0F : rounded_product(largest, factor);
    shrink[r] =
        exp2_of(is_large(shift[r]) ? rounded_product(rounded_sum(before, -largest), factor)
                                   : rounded_sum(rounded_product(before, factor), -shift[r]));
    state.l[r] = rounded_product(state.l[r], shrink[r]);
    any_large = any_large || is_large(shift[r]);
    changes = changes || !(shrink[r] == 1.0F);
  }
  if (any_lane(any_large)) {
    for_each_score<Shape>(s, [&](int r, int, int, float& x) {
      x = is_large(shift[r]) ? rounded_product(rounded_sum(x, -state.m[r]), factor)
                             : fused(x, factor, -shift[r]);
    });
  } else {
    for_each_score<Shape>(s, [&](int r, int, int, float& x) { x = fused(x, factor, -shift[r]); });
  }
  for_each_score<Shape>(s, [&](int r, int, int, float& x) {
    x = exp2_of(x);
    state.l[r] = rounded_sum(state.l[r], x);
  });
  return changes;
}

// Multiplies the sums of each of a thread's rows r by factors[r].
template <class Shape>
QKV_DEVICE void multiply_sums(const float (&factors)[2 * Shape::kRowTiles], RowSums<Shape>& o) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    QKV_UNROLL
    for (int c = 0; c < Shape::kChannelTiles; ++c) {
      QKV_UNROLL
      for (int e = r % 2 * 2; e < r % 2 * 2 + 2; ++e) {
        o[r / 2][c][e] = rounded_product(o[r / 2][c][e], factors[r]);
      }
    }
  }
}

template <class Shape>
QKV_DEVICE void update_softmax(float factor, ScoreTile<Shape>& s, RowState<Shape>& state) {
  float shrink[2 * Shape::kRowTiles];
  const bool changes = update_softmax<Shape>(factor, s, state, shrink);
  // Most tiles do not change a maximum, and a product with 1 changes nothing.
  if (any_lane(changes)) multiply_sums<Shape>(shrink, state.o);
}

// ---- values that are not finite -------------------------------------------------------------

// The 16 bits in shared memory of the weight of a masked pair: -0.
inline constexpr std::uint32_t kMasked = 0x8000U;

// The address in shared memory of this thread's two weights in columns n * 8 + 2 * (lane % 4) and
// n * 8 + 2 * (lane % 4) + 1.
template <class Shape>
QKV_DEVICE std::uint32_t weight_place(int m, int half, int n) {
  return Shape::kWeights +
         static_cast<std::uint32_t>(
             (row_in_block<Shape>(m, half) * Shape::kKeys + n * 8 + thread_index() % 4 * 2) * 2);
}

// Stores kMasked for each of this thread's masked pairs, and 0 for the others.
template <class Shape>
QKV_DEVICE void mark_masked(const ScoreTile<Shape>& s) {
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      QKV_UNROLL
      for (int n = 0; n < Shape::kKeyTiles; ++n) {
        const float(&x)[4] = s.at[m][n];
        store_shared(weight_place<Shape>(m, half, n),
                     (x[2 * half] == minus_infinity() ? kMasked : 0U) |
                         (x[2 * half + 1] == minus_infinity() ? kMasked << 16 : 0U));
      }
    }
  }
}

// Adds weight * x to the sums o of one row (`half`), for each x that is infinite or NaN in row j of
// a tile, in kCount chunks of 8 channels from first_chunk on.
template <class Shape, class Tiles, int kCount>
QKV_DEVICE void add_non_finite_row(std::uint32_t tile, int j, int first_chunk, float weight,
                                   int half, float (&o)[kCount][4]) {
  QKV_UNROLL
  for (int c = 0; c < kCount; ++c) {
    const std::uint32_t pair =
        load_shared(shared_chunk<Shape>(tile, j, first_chunk + c) + thread_index() % 4 * 4);
    const std::uint32_t halves = non_finite_halves<Tiles>(pair);
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      if ((halves >> (16 * e) & 0x8000U) == 0) continue;
      const float x = widened(Tiles{}, static_cast<std::uint16_t>(pair >> (16 * e)));
      o[c][2 * half + e] = fused(weight, x, o[c][2 * half + e]);
    }
  }
}

// Adds weight * value to o for each value of the tile that is infinite or NaN and each pair that is
// not masked. The caller must then set these values to 0: otherwise add_products() would multiply
// them by the weight 0 of masked pairs, which gives NaN.
template <class Shape, class Tiles>
QKV_DEVICE void add_non_finite(const ScoreTile<Shape>& p, RowState<Shape>& state) {
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      QKV_UNROLL
      for (int n = 0; n < Shape::kKeyTiles; ++n) {
        const std::uint32_t place = weight_place<Shape>(m, half, n);
        const std::uint32_t masked = load_shared(place);
        const std::uint32_t pair =
            rounded_pair(Tiles{}, p.at[m][n][2 * half], p.at[m][n][2 * half + 1]);
        // The weight of a masked pair is 0, and its mark kMasked turns it into -0.
        store_shared(place, pair | masked);
      }
    }
  }
  sync_warp();
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t row =
          Shape::kWeights +
          static_cast<std::uint32_t>(row_in_block<Shape>(m, half) * Shape::kKeys * 2);
      QKV_ROLLED
      for (int j = 0; j < Shape::kKeys; ++j) {
        const std::uint32_t bits = load_shared(row + j / 2 * 4) >> (j % 2 * 16) & 0xFFFFU;
        if (bits == kMasked) continue;
        const float weight = widened(Tiles{}, static_cast<std::uint16_t>(bits));
        add_non_finite_row<Shape, Tiles>(Shape::kV, j, 0, weight, half, state.o[m]);
      }
    }
  }
}

// Whether a sum of this thread is NaN.
template <class Shape>
QKV_DEVICE bool has_nan(const RowSums<Shape>& o) {
  bool found = false;
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int c = 0; c < Shape::kChannelTiles; ++c) {
      QKV_UNROLL
      for (int e = 0; e < 4; ++e) found = found || o[m][c][e] != o[m][c][e];
    }
  }
  return found;
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_TILES_H_
