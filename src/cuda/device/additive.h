// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_H_
#define QKV_CUDA_DEVICE_ADDITIVE_H_

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_project.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The forward pass of the additive score, s_ij = scale sum_u v_u tanh(x_iu + y_ju), in float32. The
// projections x and y are in memory: device/additive_project.h.
//
// A block of four warps computes kRows queries of one head, as forward() does: tiles of kKeys keys
// ascend from key 0 of the sequence, and a tile without a live key of a query leaves the query's
// state as it is. A tile's scores are summed over chunks of 32 units, with one reciprocal and no
// tanh for a pair and unit (docs/mechanisms/additive.md):
//   tanh(x + y) = 2 (1/2 - r)        r = 1 / (1 + e^2x e^2y)
// A thread holds the scores of two rows and of a quarter of the keys, where those of 16-bit tiles
// are. Channels of values are its own: of each 16, the four from 4 * (lane % 4) on.
//
// Range: e^2x overflows where x + y may be small. Exponentials of |x| and |y| up to kPlainBound are
// multiplied; any other pair and unit takes e^2(x + y). Which of them it is depends on x_iu and
// y_ju alone, so a row's bits depend on no other row. A chunk in which all are small, which the
// threads find out while they bring it to shared memory, holds exponentials there; another chunk
// holds x and y, and its loop computes both forms.
namespace qkv::cuda {

// Largest |x| whose e^2x is a factor: a product of two of them, at most 2^202, may overflow to
// infinity, for which r is 0 and tanh 1, and may be 0.
inline constexpr float kPlainBound = 35;

// Whether |x| is small. NaN is not.
QKV_DEVICE bool is_plain(float x) { return x <= kPlainBound && x >= -kPlainBound; }

// e^2x = 2^(n + f) for |x| up to kPlainBound, with an integer n and |f| <= 1/2. ex2.approx errs by
// up to 2 ulp, of which the bound of the score's error has no room: 2^f is the polynomial of the
// CPU's kernels (kernels/exp-inl.h), and the product with 2 log2(e) keeps what rounding and the
// constant leave out.
QKV_DEVICE float squared_exponential(float x) {
  constexpr float kHigh = 2.88539004F;  // 2 log2(e), and what it lacks
  constexpr float kLow = 3.85192607e-08F;
  constexpr float kRounder = 12582912;  // 1.5 2^23: a sum with it is rounded to an integer
  const float rounded = fused(x, kHigh, kRounder);
  const float f = fused(x, kLow, fused(x, kHigh, rounded_sum(kRounder, -rounded)));
  float p = fused(0x1.470b4ap-13F, f, 0x1.5f7276p-10F);
  p = fused(p, f, 0x1.3b270ep-7F);
  p = fused(p, f, 0x1.c6ae72p-5F);
  p = fused(p, f, 0x1.ebfbe2p-3F);
  p = fused(p, f, 0x1.62e432p-1F);
  p = fused(p, f, 1.0F);
  return bits_to_float(float_to_bits(p) + (float_to_bits(rounded) << 23));
}

// ---- projections ----------------------------------------------------------------------------

// Four projections of a row that a thread brings to shared memory.
struct Quad {
  int row;  // in the tile
  int quad;
};
template <class Shape, int kCount>
QKV_DEVICE Quad own_quad(int n) {
  const int at = n * Shape::kThreads + thread_index();
  return {at % kCount, at / kCount};
}

// Starts the copies of a chunk's projections, of rows first .. first+kCount-1.
template <class Shape, int kCount>
QKV_DEVICE void copy_projections(std::uint32_t to, const FourFloats* from, std::int64_t quad_stride,
                                 int quads, int chunk, int first, int limit) {
  constexpr int kEach = kCount * kUnitQuads / Shape::kThreads;
  static_assert(kEach * Shape::kThreads == kCount * kUnitQuads);
  // Unrolled, the addresses of all copies take registers that ptxas for sm_80 does not have.
  QKV_ROLLED
  for (int n = 0; n < kEach; ++n) {
    const Quad own = own_quad<Shape, kCount>(n);
    const int quad = chunk * kUnitQuads + own.quad;
    const bool valid = first + own.row < limit && quad < quads;
    copy_16(to + static_cast<std::uint32_t>((n * Shape::kThreads + thread_index()) * 16),
            from + (valid ? quad * quad_stride + first + own.row : 0), valid);
  }
}

// Whether each of this thread's copies of kCount rows is small.
template <class Shape, int kCount>
QKV_DEVICE bool are_plain(std::uint32_t from) {
  constexpr int kEach = kCount * kUnitQuads / Shape::kThreads;
  bool plain = true;
  QKV_UNROLL
  for (int n = 0; n < kEach; ++n) {
    const Words4 x = load_shared_words(
        from + static_cast<std::uint32_t>((n * Shape::kThreads + thread_index()) * 16));
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) plain = plain && is_plain(bits_to_float(x.w[w]));
  }
  return plain;
}

// The place of key j in a row of the tile of keys: a thread reads its own four at a time.
QKV_DEVICE int key_place(int j) {
  const int own = j / 8 * 2 + j % 2;  // among those of lanes with its lane % 4, j / 2 % 4
  return own / 4 * 16 + j / 2 % 4 * 4 + own % 4;
}

// Moves this thread's copies to the tiles, as exponentials if `plain`.
template <class Shape>
QKV_DEVICE void place_projections(bool plain) {
  constexpr int kLeftEach = Shape::kRows * kUnitQuads / Shape::kThreads;
  constexpr int kRightEach = Shape::kKeys * kUnitQuads / Shape::kThreads;
  const auto taken = [&](std::uint32_t from, int n) {
    Words4 x = load_shared_words(
        from + static_cast<std::uint32_t>((n * Shape::kThreads + thread_index()) * 16));
    if (plain) {
      QKV_UNROLL
      for (int w = 0; w < 4; ++w) {
        x.w[w] = float_to_bits(squared_exponential(bits_to_float(x.w[w])));
      }
    }
    return x;
  };
  QKV_UNROLL
  for (int n = 0; n < kLeftEach; ++n) {
    const Quad own = own_quad<Shape, Shape::kRows>(n);
    store_shared(
        Shape::kLeft + static_cast<std::uint32_t>(own.row * Shape::kLeftPitch + own.quad * 16),
        taken(Shape::kNextLeft, n));
  }
  QKV_UNROLL
  for (int n = 0; n < kRightEach; ++n) {
    const Quad own = own_quad<Shape, Shape::kKeys>(n);
    const Words4 y = taken(Shape::kNextRight, n);
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) {
      store_shared(
          Shape::kRight + static_cast<std::uint32_t>((own.quad * 4 + w) * Shape::kRightPitch +
                                                     key_place(own.row) * 4),
          y.w[w]);
    }
  }
}

// Brings the parameter v of a chunk to shared memory. Units beyond the last become 0.
QKV_DEVICE void place_units(std::uint32_t to, const DeviceArray& v, int h, int first, int count) {
  const int u = thread_index();
  if (u >= kUnitChunk) return;
  float x = 0;
  if (first + u < count) x = number<float>(v.data, h * v.head + (first + u) * v.col);
  store_shared(to + static_cast<std::uint32_t>(u * 4), float_to_bits(x));
}

// ---- scores ---------------------------------------------------------------------------------

// score += v (1/2 - r) for r = 1 / denominator.
QKV_DEVICE void add_unit(float v, float denominator, float& score) {
  score = fused(v, rounded_sum(0.5F, -reciprocal(denominator)), score);
}

// Sets s = sum_u v_u (1/2 - r_u) over a chunk of `quads` quads of units.
template <class Shape, bool kPlain>
QKV_DEVICE void sum_units(int quads, ScoreTile<Shape>& s) {
  const int lane = thread_index() % kLanes;
  for_each_score<Shape>(s, [](int, int, int, float& score) { score = 0; });
  const std::uint32_t first_row =
      Shape::kLeft + static_cast<std::uint32_t>(row_in_block<Shape>(0, 0) * Shape::kLeftPitch);
  const std::uint32_t first_key = Shape::kRight + static_cast<std::uint32_t>(lane % 4 * 16);
  // The score of row `half` and key part * 16 + n of this thread's.
  const auto at = [&](int half, int part, int n) -> float& {
    return s.at[0][part * 2 + n / 2][2 * half + n % 2];
  };
  if constexpr (kPlain) {
    QKV_ROLLED
    for (int quad = 0; quad < quads; ++quad) {
      const Words4 v = load_shared_words(Shape::kUnits + static_cast<std::uint32_t>(quad * 16));
      const Words4 x[2] = {load_shared_words(first_row + static_cast<std::uint32_t>(quad * 16)),
                           load_shared_words(first_row + static_cast<std::uint32_t>(
                                                             8 * Shape::kLeftPitch + quad * 16))};
      QKV_UNROLL
      for (int unit = 0; unit < 4; ++unit) {
        const std::uint32_t row =
            first_key + static_cast<std::uint32_t>((quad * 4 + unit) * Shape::kRightPitch);
        QKV_UNROLL
        for (int part = 0; part < Shape::kKeys / 16; ++part) {
          const Words4 y = load_shared_words(row + static_cast<std::uint32_t>(part * 64));
          QKV_UNROLL
          for (int n = 0; n < 4; ++n) {
            QKV_UNROLL
            for (int half = 0; half < 2; ++half) {
              const float denominator =
                  fused(bits_to_float(x[half].w[unit]), bits_to_float(y.w[n]), 1.0F);
              add_unit(bits_to_float(v.w[unit]), denominator, at(half, part, n));
            }
          }
        }
      }
    }
  } else {
    QKV_ROLLED
    for (int unit = 0; unit < 4 * quads; ++unit) {
      const auto column = static_cast<std::uint32_t>(unit * 4);
      const std::uint32_t row = first_key + static_cast<std::uint32_t>(unit * Shape::kRightPitch);
      const float v = bits_to_float(load_shared(Shape::kUnits + column));
      float x[2], power[2];
      QKV_UNROLL
      for (int half = 0; half < 2; ++half) {
        x[half] = bits_to_float(load_shared(
            first_row + static_cast<std::uint32_t>(half * 8 * Shape::kLeftPitch) + column));
        power[half] = squared_exponential(x[half]);
      }
      QKV_UNROLL
      for (int part = 0; part < Shape::kKeys / 16; ++part) {
        const Words4 words = load_shared_words(row + static_cast<std::uint32_t>(part * 64));
        QKV_UNROLL
        for (int n = 0; n < 4; ++n) {
          const float y = bits_to_float(words.w[n]);
          const float right = squared_exponential(y);
          QKV_UNROLL
          for (int half = 0; half < 2; ++half) {
            const float twice = rounded_product(rounded_sum(x[half], y), 2 * kLog2E);
            const float denominator = is_plain(x[half]) && is_plain(y)
                                          ? fused(power[half], right, 1.0F)
                                          : rounded_sum(1.0F, exp2_of(twice));
            add_unit(v, denominator, at(half, part, n));
          }
        }
      }
    }
  }
}

// ---- values ---------------------------------------------------------------------------------

// Copies a tile of values to shared memory. Keys from `limit` on, and channels from `width` on,
// become 0.
template <class Shape>
QKV_DEVICE void load_values(const DeviceArray& x, const float* from, int first, int limit,
                            int width) {
  constexpr int kQuads = Shape::kWidth / 4;
  QKV_ROLLED
  for (int n = thread_index(); n < Shape::kKeys * kQuads; n += Shape::kThreads) {
    const int row = n / kQuads;
    const int c = n % kQuads * 4;
    const std::uint32_t to =
        Shape::kV + static_cast<std::uint32_t>(row * Shape::kValuePitch + c * 4);
    const bool valid = first + row < limit && c < width;
    const float* start = from + (valid ? (first + row) * x.row + c * x.col : 0);
    if (x.vectors) {
      copy_16(to, start, valid);
      continue;
    }
    Words4 words{};
    QKV_UNROLL
    for (int w = 0; w < 4; ++w) {
      if (valid && c + w < width) words.w[w] = float_to_bits(start[w * x.col]);
    }
    store_shared(to, words);
  }
}

// A weight in shared memory: of a masked pair, -0.
inline constexpr std::uint32_t kMaskedWeight = 0x80000000U;

// The bits of this thread's masked pairs: bit 4 n + e is of s.at[0][n][e].
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

// o += weights v. kMasks: masked pairs, whose value may be infinite or NaN, add nothing. Else none
// of this warp's is masked.
template <class Shape, bool kMasks>
QKV_DEVICE void add_values(RowState<Shape>& state) {
  const int lane = thread_index() % kLanes;
  const std::uint32_t first_row =
      Shape::kWeights + static_cast<std::uint32_t>(row_in_block<Shape>(0, 0) * Shape::kWeightPitch);
  const std::uint32_t first_value = Shape::kV + static_cast<std::uint32_t>(lane % 4 * 16);
  QKV_ROLLED
  for (int j0 = 0; j0 < Shape::kKeys; j0 += 4) {
    const Words4 p[2] = {load_shared_words(first_row + static_cast<std::uint32_t>(j0 * 4)),
                         load_shared_words(first_row + static_cast<std::uint32_t>(
                                                           8 * Shape::kWeightPitch + j0 * 4))};
    QKV_UNROLL
    for (int j = 0; j < 4; ++j) {
      QKV_UNROLL
      for (int part = 0; part < Shape::kWidth / 16; ++part) {
        const Words4 v = load_shared_words(
            first_value + static_cast<std::uint32_t>((j0 + j) * Shape::kValuePitch + part * 64));
        QKV_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (kMasks && p[half].w[j] == kMaskedWeight) continue;
          QKV_UNROLL
          for (int n = 0; n < 4; ++n) {
            float& o = state.o[0][part * 2 + n / 2][2 * half + n % 2];
            o = fused(bits_to_float(p[half].w[j]), bits_to_float(v.w[n]), o);
          }
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

// ---- the kernel -----------------------------------------------------------------------------

template <class Shape>
QKV_DEVICE void additive(const AdditiveArguments& x) {
  const ForwardArguments& a = x.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const auto* v = static_cast<const float*>(a.v.data) +
                  offset_of(a, a.v, place.b, value_head_of(a, key_head)) + place.k0 * a.v.row;
  const std::int64_t entry = a.starts_q.data == nullptr ? place.b : 0;
  const auto rows = [&](const Projections& p, int head, std::int64_t first) {
    return reinterpret_cast<const FourFloats*>(p.data) +
           (entry * p.heads + head) * x.quads * p.rows + first;
  };
  const FourFloats* left = rows(x.left, place.h, place.q0);
  const FourFloats* right = rows(x.right, x.right.heads == a.H ? place.h : key_head, place.k0);

  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  RowState<Shape> state;
  clear_state<Shape>(state);

  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int first_tile = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end_tile = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  const int chunks = (x.quads + kUnitQuads - 1) / kUnitQuads;
  const auto copy_chunk = [&](int tile, int chunk) {
    copy_projections<Shape, Shape::kRows>(Shape::kNextLeft, left, x.left.rows, x.quads, chunk,
                                          place.first, place.Tq);
    copy_projections<Shape, Shape::kKeys>(Shape::kNextRight, right, x.right.rows, x.quads, chunk,
                                          tile * Shape::kKeys, place.Tk);
  };
  if (first_tile < end_tile) copy_chunk(first_tile, 0);
  commit_copies();
  QKV_ROLLED
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int j = tile * Shape::kKeys;
    ScoreTile<Shape> s;
    for_each_score<Shape>(s, [](int, int, int, float& score) { score = 0; });
    QKV_ROLLED
    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait_copies<0>();
      const bool own_plain = are_plain<Shape, Shape::kRows>(Shape::kNextLeft) &&
                             are_plain<Shape, Shape::kKeys>(Shape::kNextRight);
      // After this all threads have also finished with the last chunk or the last tile's values.
      const bool plain = !any_thread(!own_plain);
      place_projections<Shape>(plain);
      place_units(Shape::kUnits, x.v, place.h, chunk * kUnitChunk, x.U);
      if (chunk == 0) {
        if (a.out.data != nullptr) load_values<Shape>(a.v, v, j, place.Tk, a.E);
        stage_options<Shape>(a, place, j);
      }
      if (chunk + 1 < chunks) {
        copy_chunk(tile, chunk + 1);
      } else if (tile + 1 < end_tile) {
        copy_chunk(tile + 1, 0);
      }
      commit_copies();
      sync_threads();  // the chunk is there
      const int quads = smaller(kUnitQuads, x.quads - chunk * kUnitQuads);
      ScoreTile<Shape> sum;
      if (plain) {
        sum_units<Shape, true>(quads, sum);
      } else {
        sum_units<Shape, false>(quads, sum);
      }
      QKV_UNROLL
      for (int n = 0; n < Shape::kKeyTiles; ++n) {
        QKV_UNROLL
        for (int e = 0; e < 4; ++e) s.at[0][n][e] = rounded_sum(s.at[0][n][e], sum.at[0][n][e]);
      }
    }
    for_each_score<Shape>(s,
                          [](int, int, int, float& score) { score = rounded_sum(score, score); });
    wait_copies<0>();
    sync_threads();  // values and options are there, and all have finished with the chunk
    const bool inside = j >= bounds.last_begin && j + Shape::kKeys <= bounds.first_end;
    finish_scores<Shape, true>(a, place, inside, j, s);
    const std::uint32_t masked = masked_pairs<Shape>(s);
    update_softmax<Shape>(factor, s, state);
    if (a.drops) drop_weights<Shape>(a, place, tile, s);
    if (a.out.data == nullptr) continue;
    store_weights<Shape>(s, masked);
    sync_warp();
    if (any_lane(masked != 0)) {
      add_values<Shape, true>(state);
    } else {
      add_values<Shape, false>(state);
    }
  }
  wait_copies<0>();
  store_rows<Shape>(a, place, factor, state);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_H_
