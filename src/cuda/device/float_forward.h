// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FLOAT_FORWARD_H_
#define QKV_CUDA_DEVICE_FLOAT_FORWARD_H_

#include <cstdint>

#include "cuda/device/arrays.h"
#include "cuda/device/float_shape.h"
#include "cuda/device/float_tiles.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The forward pass of dot products in float32.
//
// A block of four warps computes kRows queries of one head, as forward() in forward.h does: tiles
// of kKeys keys ascend from key 0 of the sequence, and a tile without a live key for a query leaves
// the query's state as it is. A thread holds four of every 16 channels of values, from channel
// 4 * (lane % 4) on.
namespace qkv::cuda {

// ---- values ---------------------------------------------------------------------------------

// If `out` is requested, copies the values of kKeys keys, from key `first` on, to shared memory.
// Keys and channels beyond the last become 0.
template <class Shape>
QKV_DEVICE void load_values(const ForwardArguments& a, const BlockPlace& place, const FloatRows& v,
                            int first) {
  if (a.out.data == nullptr) return;
  const int limit = place.Tk;
  const int width = a.E;
  constexpr int kQuads = Shape::kWidth / 4;
  QKV_ROLLED
  for (int n = thread_index(); n < Shape::kKeys * kQuads; n += Shape::kThreads) {
    const int row = n / kQuads;
    const int c = n % kQuads * 4;
    const std::uint32_t to =
        Shape::kV + static_cast<std::uint32_t>(row * Shape::kValuePitch + c * 4);
    const bool valid = first + row < limit && c < width;
    const float* start = v.data + (valid ? (first + row) * v.row + c * v.col : 0);
    if (a.v.vectors) {
      copy_16(to, start, valid);
      continue;
    }
    Words4 words{};
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) {
      if (valid && c + w < width) words.w[w] = float_to_bits(start[w * v.col]);
    }
    store_shared(to, words);
  }
}

// The weight of a masked pair in shared memory: the bits of -0.
inline constexpr std::uint32_t kMaskedWeight = 0x80000000U;

// Bit 4 n + e of the result is 1 if this thread's pair with the score s.at[0][n][e] is masked.
template <class Shape>
QKV_DEVICE std::uint32_t masked_pairs(const ScoreTile<Shape>& s) {
  static_assert(Shape::kKeyTiles * 4 <= 32);
  std::uint32_t masked = 0;
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (s.at[0][n][e] == minus_infinity()) masked |= 1U << (4 * n + e);
    }
  }
  return masked;
}

template <class Shape>
QKV_DEVICE void store_weights(const ScoreTile<Shape>& p, std::uint32_t masked) {
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t row =
        Shape::kWeights +
        static_cast<std::uint32_t>(row_in_block<Shape>(0, half) * Shape::kWeightPitch);
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        const bool is_masked = (masked >> (4 * n + 2 * half + e) & 1U) != 0;
        store_shared(row + static_cast<std::uint32_t>((n * 8 + thread_index() % 4 * 2 + e) * 4),
                     is_masked ? kMaskedWeight : float_to_bits(p.at[0][n][2 * half + e]));
      }
    }
  }
}

// Sums weights * v over the keys of the tile, then adds the sums to state.o. With kMasks, masked
// pairs, whose values may be infinite or NaN, add nothing; without it, this warp must have no
// masked pair. Channels are taken 64 at a time, so that their sums fit into the registers of the
// scores.
template <class Shape, bool kMasks>
QKV_DEVICE void add_values(RowState<Shape>& state) {
  constexpr int kParts = 4;
  static_assert(Shape::kWidth % (16 * kParts) == 0);
  const int lane = thread_index() % kLanes;
  const std::uint32_t first_row =
      Shape::kWeights + static_cast<std::uint32_t>(row_in_block<Shape>(0, 0) * Shape::kWeightPitch);
  const std::uint32_t first_value = Shape::kV + static_cast<std::uint32_t>(lane % 4 * 16);
  QKV_UNROLL
  for (int from = 0; from < Shape::kWidth / 16; from += kParts) {
    float sums[kParts][2][4];
    QKV_UNROLL
    for (int n = 0; n < kParts * 8; ++n) sums[n / 8][n / 4 % 2][n % 4] = -0.0F;  // -0 + x is x
    QKV_ROLLED
    for (int j0 = 0; j0 < Shape::kKeys; j0 += 4) {
      const Words4 p[2] = {load_shared_words(first_row + static_cast<std::uint32_t>(j0 * 4)),
                           load_shared_words(first_row + static_cast<std::uint32_t>(
                                                             8 * Shape::kWeightPitch + j0 * 4))};
      QKV_UNROLL
      for (int j = 0; j < 4; ++j) {
        QKV_UNROLL
        for (int part = 0; part < kParts; ++part) {
          const Words4 v = load_shared_words(
              first_value +
              static_cast<std::uint32_t>((j0 + j) * Shape::kValuePitch + (from + part) * 64));
          QKV_UNROLL
          for (int half = 0; half < 2; ++half) {
            if (kMasks && p[half].w[j] == kMaskedWeight) continue;
            QKV_UNROLL
            for (int n = 0; n < 4; ++n) {
              float& sum = sums[part][half][n];
              sum = fused(bits_to_float(p[half].w[j]), bits_to_float(v.w[n]), sum);
            }
          }
        }
      }
    }
    QKV_UNROLL
    for (int part = 0; part < kParts; ++part) {
      QKV_UNROLL
      for (int half = 0; half < 2; ++half) {
        QKV_UNROLL
        for (int n = 0; n < 4; ++n) {
          float& o = state.o[0][(from + part) * 2 + n / 2][2 * half + n % 2];
          o = rounded_sum(o, sums[part][half][n]);
        }
      }
    }
  }
}

template <class Shape>
QKV_DEVICE void store_rows(const ForwardArguments& a, const BlockPlace& place, float factor,
                           RowState<Shape>& state) {
  finish_rows<Shape, float>(a, place, factor, state,
                            [&](float* out, int, int half, float weight, bool zero) {
                              QKV_UNROLL
                              for (int part = 0; part < Shape::kWidth / 16; ++part) {
                                const int channel = part * 16 + thread_index() % 4 * 4;
                                FourFloats four;
                                QKV_UNROLL
                                for (int n = 0; n < 4; ++n) {
                                  const float o = state.o[0][part * 2 + n / 2][2 * half + n % 2];
                                  four.x[n] = zero ? 0.0F : rounded_product(o, weight);
                                }
                                if (a.out.vectors && channel + 3 < a.E) {
                                  *reinterpret_cast<FourFloats*>(out + channel) = four;
                                  continue;
                                }
                                QKV_UNROLL
                                for (int n = 0; n < 4; ++n) {
                                  if (channel + n < a.E) out[(channel + n) * a.out.col] = four.x[n];
                                }
                              }
                            });
}

// ---- the kernel ---------------------------------------------------------------------------------

// Adds a tile of keys to the state of the block's queries. `s` holds products q . k, or for
// additive scores sums over units.
template <class Shape>
QKV_DEVICE void attend_tile(const ForwardArguments& a, const BlockPlace& place,
                            const BlockBounds& bounds, int tile, float factor, ScoreTile<Shape>& s,
                            RowState<Shape>& state) {
  const int j = tile * Shape::kKeys;
  const bool inside = j >= bounds.last_begin && j + Shape::kKeys <= bounds.first_end;
  finish_scores<Shape, true>(a, place, inside, j, s);
  const std::uint32_t masked = masked_pairs<Shape>(s);
  update_softmax<Shape>(factor, s, state);
  if (a.drops) drop_weights<Shape>(a, place, tile, s);
  if (a.out.data == nullptr) return;
  store_weights<Shape>(s, masked);
  sync_warp();
  if (any_lane(masked != 0)) {
    add_values<Shape, true>(state);
  } else {
    add_values<Shape, false>(state);
  }
}

template <class Shape>
QKV_DEVICE void float_forward(const ForwardArguments& a) {
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const FloatRows q = float_rows(a, a.q, place.b, place.h, place.q0);
  const FloatRows k = float_rows(a, a.k, place.b, key_head, place.k0);
  const FloatRows v = float_rows(a, a.v, place.b, value_head_of(a, key_head), place.k0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  RowState<Shape> state;
  clear_state<Shape>(state);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    ScoreTile<Shape> s;
    multiply_float_rows<Shape>(
        q, k, place, first_key, a.D,
        [&] {
          load_values<Shape>(a, place, v, first_key);
          stage_options<Shape>(a, place, first_key);
          commit_copies();
        },
        s);
    wait_copies<0>();
    sync_threads();  // values and options are there, and all have finished with q and k
    attend_tile<Shape>(a, place, bounds, tile, factor, s, state);
  }
  store_rows<Shape>(a, place, factor, state);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FLOAT_FORWARD_H_
