// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_PAIRS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_PAIRS_H_

#include <cstdint>

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_project.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/float_tiles.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The pairs of a tile in the additive score, s_ij = scale sum_u v_u tanh(x_iu + y_ju), in float32.
// The projections x and y are in memory: device/additive_project.h. Chunks of 32 units come to
// shared memory one after another. Each pair and unit takes one reciprocal and no tanh
// (docs/mechanisms/additive.md):
//   tanh(x + y) = 2 (1/2 - r)        r = 1 / (1 + e^2x e^2y)
// A thread holds the numbers of two rows and of a quarter of the columns, in the layout of 16-bit
// tiles. Rows and columns are queries and keys, or for gradients of keys the reverse.
//
// Range: e^2x overflows where x + y may be small. If |x| and |y| are at most kPlainBound, e^2x and
// e^2y are multiplied; any other pair and unit takes e^2(x + y). The choice depends on x_iu and
// y_ju alone, so a row's bits depend on no other row. A chunk with only small x and y, which the
// threads find out while they bring it to shared memory, holds exponentials there; any other chunk
// holds x and y, and its loop computes both forms.
namespace qkv::cuda {

// The largest |x| whose e^2x is a factor. A product of two factors is between 2^-202 and 2^202: it
// may overflow to infinity, for which r is 0 and tanh 1, or be 0, for which r is 1 and tanh -1.
inline constexpr float kPlainBound = 35;

// Whether |x| is small. NaN is not.
QKV_DEVICE bool is_plain(float x) { return x <= kPlainBound && x >= -kPlainBound; }

// e^2x = 2^(n + f) for |x| up to kPlainBound, with an integer n and |f| <= 1/2. ex2.approx errs by
// up to 2 ulp, for which the bound of the score's error has no room: 2^f is the polynomial of the
// CPU's kernels (kernels/exp-inl.h), and the product with 2 log2(e) keeps what rounding and the
// constant leave out.
QKV_DEVICE float squared_exponential(float x) {
  constexpr float kHigh = 2.88539004F;     // 2 log2(e)
  constexpr float kLow = 3.85192607e-08F;  // 2 log2(e) - kHigh
  constexpr float kRounder = 12582912;     // 1.5 2^23: a sum with it is rounded to an integer
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

// ---- projections ------------------------------------------------------------------------------

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
  // If the loop is unrolled, addresses take more registers than ptxas has for sm_80.
  QKV_ROLLED
  for (int n = 0; n < kEach; ++n) {
    const Quad own = own_quad<Shape, kCount>(n);
    const int quad = chunk * kUnitQuads + own.quad;
    const bool valid = first + own.row < limit && quad < quads;
    copy_16(to + static_cast<std::uint32_t>((n * Shape::kThreads + thread_index()) * 16),
            from + (valid ? quad * quad_stride + first + own.row : 0), valid);
  }
}

// Whether all projections that this thread has copied, from kCount rows, are small.
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

// ---- chunks -----------------------------------------------------------------------------------

// The projections of a head's rows from the first row of a sequence on.
struct ProjectedRows {
  const FourFloats* data;
  int pitch;  // rows of all sequences
  int limit;  // rows of this sequence
};

QKV_DEVICE ProjectedRows projected_rows(const AdditiveArguments& x, const Projections& p, int entry,
                                        int head, std::int64_t first, int limit) {
  const std::int64_t before = static_cast<std::int64_t>(entry) * p.heads + head;
  return {reinterpret_cast<const FourFloats*>(p.data) + before * x.quads * p.rows + first, p.rows,
          limit};
}

// Starts the copies of a chunk's projections of a tile.
template <class Shape>
QKV_DEVICE void copy_chunk(const AdditiveArguments& x, const ProjectedRows& left, int first_row,
                           const ProjectedRows& right, int first_column, int chunk) {
  copy_projections<Shape, Shape::kRows>(Shape::kNextLeft, left.data, left.pitch, x.quads, chunk,
                                        first_row, left.limit);
  copy_projections<Shape, Shape::kKeys>(Shape::kNextRight, right.data, right.pitch, x.quads, chunk,
                                        first_column, right.limit);
}

// Brings the chunks of a tile to shared memory and calls use(chunk, quads, plain) with each. The
// copies of the first chunk have been started; copy(chunk) starts the copies of another chunk, and
// next() starts copies that are needed after the last chunk. first() is called when all threads
// have finished with the previous contents of shared memory.
template <class Shape, class Copy, class First, class Next, class Use>
QKV_DEVICE void for_each_chunk(const AdditiveArguments& x, int h, const Copy& copy,
                               const First& first, const Next& next, const Use& use) {
  const int chunks = (x.quads + kUnitQuads - 1) / kUnitQuads;
  QKV_ROLLED
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_copies<0>();
    const bool own_plain = are_plain<Shape, Shape::kRows>(Shape::kNextLeft) &&
                           are_plain<Shape, Shape::kKeys>(Shape::kNextRight);
    // The vote is also a barrier: all threads have finished with the previous chunk and tile.
    const bool plain = !any_thread(!own_plain);
    place_projections<Shape>(plain);
    place_units(Shape::kUnits, x.v, h, chunk * kUnitChunk, x.U);
    if (chunk == 0) first();
    if (chunk + 1 < chunks) {
      copy(chunk + 1);
    } else {
      next();
    }
    commit_copies();
    sync_threads();  // the chunk is there
    use(chunk, smaller(kUnitQuads, x.quads - chunk * kUnitQuads), plain);
  }
}

// ---- pairs and units --------------------------------------------------------------------------

// For each unit of a chunk of `quads` quads calls begin(unit), then visit(half, part, n, 1 / r) for
// each of this thread's pairs, as tile_element() has them, then end(unit).
template <class Shape, bool kPlain, class Begin, class Visit, class End>
QKV_DEVICE void for_each_denominator(int quads, const Begin& begin, const Visit& visit,
                                     const End& end) {
  const int lane = thread_index() % kLanes;
  const std::uint32_t first_row =
      Shape::kLeft + static_cast<std::uint32_t>(row_in_block<Shape>(0, 0) * Shape::kLeftPitch);
  const std::uint32_t first_key = Shape::kRight + static_cast<std::uint32_t>(lane % 4 * 16);
  if constexpr (kPlain) {
    QKV_ROLLED
    for (int quad = 0; quad < quads; ++quad) {
      const Words4 x[2] = {load_shared_words(first_row + static_cast<std::uint32_t>(quad * 16)),
                           load_shared_words(first_row + static_cast<std::uint32_t>(
                                                             8 * Shape::kLeftPitch + quad * 16))};
      QKV_UNROLL
      for (int unit = 0; unit < 4; ++unit) {
        begin(quad * 4 + unit);
        const std::uint32_t row =
            first_key + static_cast<std::uint32_t>((quad * 4 + unit) * Shape::kRightPitch);
        QKV_UNROLL
        for (int part = 0; part < Shape::kKeys / 16; ++part) {
          const Words4 y = load_shared_words(row + static_cast<std::uint32_t>(part * 64));
          QKV_UNROLL
          for (int n = 0; n < 4; ++n) {
            QKV_UNROLL
            for (int half = 0; half < 2; ++half) {
              visit(half, part, n, fused(bits_to_float(x[half].w[unit]), bits_to_float(y.w[n]), 1));
            }
          }
        }
        end(quad * 4 + unit);
      }
    }
  } else {
    QKV_ROLLED
    for (int unit = 0; unit < 4 * quads; ++unit) {
      begin(unit);
      const auto column = static_cast<std::uint32_t>(unit * 4);
      const std::uint32_t row = first_key + static_cast<std::uint32_t>(unit * Shape::kRightPitch);
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
            visit(half, part, n,
                  is_plain(x[half]) && is_plain(y) ? fused(power[half], right, 1)
                                                   : rounded_sum(1, exp2_of(twice)));
          }
        }
      }
      end(unit);
    }
  }
}

QKV_DEVICE float unit_parameter(std::uint32_t units, int unit) {
  return bits_to_float(load_shared(units + static_cast<std::uint32_t>(unit * 4)));
}

// Adds sum_u v_u (1/2 - r_u), over the units of a chunk, to s.
template <class Shape, bool kPlain>
QKV_DEVICE void add_chunk(int quads, ScoreTile<Shape>& s) {
  ScoreTile<Shape> sum;
  clear_sums(sum.at);
  float v = 0;
  for_each_denominator<Shape, kPlain>(
      quads, [&](int unit) { v = unit_parameter(Shape::kUnits, unit); },
      [&](int half, int part, int n, float denominator) {
        float& score = tile_element<Shape>(sum, half, part, n);
        score = fused(v, rounded_sum(0.5F, -reciprocal(denominator)), score);
      },
      [](int) {});
  add_tile<Shape>(sum, s);
}

// Computes s = sum_u v_u tanh(x_iu + y_ju) of a tile's pairs. The other arguments are those of
// for_each_chunk().
template <class Shape, class Copy, class First, class Next>
QKV_DEVICE void sum_pairs(const AdditiveArguments& x, int h, const Copy& copy, const First& first,
                          const Next& next, ScoreTile<Shape>& s) {
  clear_sums(s.at);
  for_each_chunk<Shape>(x, h, copy, first, next, [&](int, int quads, bool plain) {
    if (plain) {
      add_chunk<Shape, true>(quads, s);
    } else {
      add_chunk<Shape, false>(quads, s);
    }
  });
  for_each_score<Shape>(s, [](int, int, int, float& score) { score = rounded_sum(score, score); });
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_PAIRS_H_
