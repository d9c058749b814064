// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_OPTIONS_H_
#define QKV_CUDA_DEVICE_FORWARD_OPTIONS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/philox.h"
#include "cuda/device/words.h"

// The options of a call, applied to tiles of scores and weights.
namespace qkv::cuda {

// A block copies its tiles of a bias and of Keep, [kRows, kKeys], to shared memory: asynchronously
// where 16 bytes of a row can be read together, else element by element.

// The address in shared memory of column j of a row, in a tile of elements of kBytes bytes. Chunks
// of 16 bytes are swizzled so that eight rows' chunks lie in different banks.
template <class Shape, int kBytes>
QKV_DEVICE std::uint32_t staged(std::uint32_t tile, int row, int j) {
  constexpr int kPitch = Shape::kKeys * kBytes;
  constexpr int kChunks = kPitch / 16;
  constexpr int kRowsOfBanks = kPitch < 128 ? 128 / kPitch : 1;
  constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;
  const int chunk = j * kBytes / 16 ^ (row / kRowsOfBanks & kMask);
  return tile + static_cast<std::uint32_t>(row * kPitch + chunk * 16 + j * kBytes % 16);
}

// Starts to copy a tile of elements of kBytes bytes to shared memory: see copy_16(). Elements
// outside of the matrix become 0.
template <class Shape, int kBytes>
QKV_DEVICE void stage(std::uint32_t tile, const void* matrix, std::int64_t row_stride,
                      const BlockPlace& place, int first_key) {
  constexpr int kInChunk = 16 / kBytes;
  constexpr int kChunks = Shape::kKeys / kInChunk;
  const auto* bytes = static_cast<const unsigned char*>(matrix);
  QKV_ROLLED
  for (int n = thread_index(); n < Shape::kRows * kChunks; n += Shape::kThreads) {
    const int row = n / kChunks;
    const int j = n % kChunks * kInChunk;
    const bool valid = place.first + row < place.Tq && first_key + j < place.Tk;
    const std::int64_t offset =
        valid ? ((place.first + row) * row_stride + first_key + j) * kBytes : 0;
    copy_16(staged<Shape, kBytes>(tile, row, j), bytes + offset, valid);
  }
}

// Writes a tile of elements of 4 / kGroup bytes to shared memory. f(i, j) gives the bits of the
// element of query i and key j; elements outside of the matrix are 0.
template <class Shape, int kGroup, class F>
QKV_DEVICE void stage_elements(std::uint32_t tile, const BlockPlace& place, int first_key,
                               const F& f) {
  constexpr int kGroups = Shape::kKeys / kGroup;
  QKV_ROLLED
  for (int n = thread_index(); n < Shape::kRows * kGroups; n += Shape::kThreads) {
    const int row = n / kGroups;
    const int j = n % kGroups * kGroup;
    std::uint32_t word = 0;
    QKV_ROLLED
    for (int e = 0; e < kGroup; ++e) {
      if (place.first + row < place.Tq && first_key + j + e < place.Tk) {
        word |= f(place.first + row, first_key + j + e) << (e * 8);
      }
    }
    store_shared(staged<Shape, 4 / kGroup>(tile, row, j), word);
  }
}

// Stores in shared memory the offsets, in elements, at which the head's bias and Keep begin.
template <class Shape>
QKV_DEVICE void store_option_offsets(const ForwardArguments& a, const BlockPlace& place) {
  const auto offset = [&](const DeviceArray& x) {
    return static_cast<std::uint64_t>(offset_of(a, x, place.b, place.h));
  };
  store_long(Shape::kPlaces, offset(a.bias));
  store_long(Shape::kPlaces + 8, offset(a.keep));
}

// Copies a tile of the bias and of Keep, and the padding of the tile's keys, to shared memory. Some
// copies are only started: see copy_16().
template <class Shape>
QKV_DEVICE void stage_options(const ForwardArguments& a, const BlockPlace& place, int first_key) {
  const auto bias_offset = static_cast<std::int64_t>(load_long(Shape::kPlaces));
  const auto keep_offset = static_cast<std::int64_t>(load_long(Shape::kPlaces + 8));
  const DeviceArray& keep = a.keep;
  if (keep.vectors) {
    stage<Shape, 1>(Shape::kKeep, static_cast<const unsigned char*>(keep.data) + keep_offset,
                    keep.row, place, first_key);
  } else if (keep.data != nullptr) {
    stage_elements<Shape, 4>(Shape::kKeep, place, first_key, [&](int i, int j) {
      const std::int64_t at = keep_offset + i * keep.row + j * keep.col;
      return integer_at(keep.type, keep.data, at) != 0 ? 1U : 0U;
    });
  }
  const DeviceArray& bias = a.bias;
  if (bias.vectors && bias.type == Element::kFloat32) {
    stage<Shape, 4>(Shape::kBias, static_cast<const float*>(bias.data) + bias_offset, bias.row,
                    place, first_key);
  } else if (bias.vectors) {
    stage<Shape, 2>(Shape::kBias, static_cast<const std::uint16_t*>(bias.data) + bias_offset,
                    bias.row, place, first_key);
  } else if (bias.data != nullptr) {
    stage_elements<Shape, 1>(Shape::kBias, place, first_key, [&](int i, int j) {
      return float_to_bits(
          real_at(bias.type, bias.data, bias_offset + i * bias.row + j * bias.col));
    });
  }
  const int t = thread_index();
  if (a.padding.data != nullptr && t < Shape::kKeys) {
    const std::int64_t at = place.b * a.padding.entry + (first_key + t) * a.padding.col;
    const bool padded =
        first_key + t < place.Tk && integer_at(a.padding.type, a.padding.data, at) != 0;
    store_shared(Shape::kPadding + t * 4, padded ? 1U : 0U);
  }
}

// The addresses in shared memory of the elements of this thread's pairs. Constants, combined with
// the first address by an exclusive or and an addition, give the others without more registers.
template <class Shape, int kBytes>
class PairPlaces {
 public:
  QKV_DEVICE explicit PairPlaces(std::uint32_t tile)
      : first_(staged<Shape, kBytes>(tile, row_in_block<Shape>(0, 0), thread_index() % 4 * 2)) {}
  QKV_DEVICE std::uint32_t at(int m, int half, int n) const {
    return (first_ ^ static_cast<std::uint32_t>(n * 8 * kBytes)) +
           static_cast<std::uint32_t>((m * 16 + half * 8) * Shape::kKeys * kBytes);
  }

 private:
  static_assert(Shape::kKeep % 256 == 0 && Shape::kBias % 256 == 0);
  std::uint32_t first_;
};

// Calls f(m, half, n, row, j) for every two adjacent scores of this thread, s.at[m][n][2 * half]
// and the next: they are of the block's query `row` and of keys j and j + 1 of the tile.
template <class Shape, class F>
QKV_DEVICE void for_each_pair(const F& f) {
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = row_in_block<Shape>(m, half);
      QKV_UNROLL
      for (int n = 0; n < Shape::kKeyTiles; ++n) {
        f(m, half, n, row, n * 8 + thread_index() % 4 * 2);
      }
    }
  }
}

// Adds a bias to a score. A bias of -inf masks the pair, even if the score is NaN.
QKV_DEVICE void add_bias(float bias, float& score) {
  score = bias == minus_infinity() ? bias : rounded_sum(score, bias);
}

template <class Shape>
QKV_DEVICE void add_biases(const DeviceArray& x, ScoreTile<Shape>& s) {
  if (!x.vectors || x.type == Element::kFloat32) {
    const PairPlaces<Shape, 4> places(Shape::kBias);
    for_each_pair<Shape>([&](int m, int half, int n, int, int) {
      const std::uint32_t at = places.at(m, half, n);
      add_bias(bits_to_float(load_shared(at)), s.at[m][n][2 * half]);
      add_bias(bits_to_float(load_shared(at + 4)), s.at[m][n][2 * half + 1]);
    });
    return;
  }
  const PairPlaces<Shape, 2> places(Shape::kBias);
  if (x.type == Element::kBFloat16) {
    for_each_pair<Shape>([&](int m, int half, int n, int, int) {
      const std::uint32_t both = load_shared(places.at(m, half, n));
      add_bias(bits_to_float(both << 16), s.at[m][n][2 * half]);
      add_bias(bits_to_float(both & 0xFFFF0000U), s.at[m][n][2 * half + 1]);
    });
  } else {
    for_each_pair<Shape>([&](int m, int half, int n, int, int) {
      const std::uint32_t both = load_shared(places.at(m, half, n));
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        add_bias(widened(Float16Tiles{}, static_cast<std::uint16_t>(both >> (16 * e))),
                 s.at[m][n][2 * half + e]);
      }
    });
  }
}

// |i + o - j| of the block's query `row` and key j: exact below 2^24, rounded to float32 above.
QKV_DEVICE float distance_of(const BlockPlace& place, int row, int j) {
  const auto diagonal = static_cast<float>(place.first + row + place.diagonal);
  return size_of(rounded_sum(diagonal, -static_cast<float>(j)));
}

// Subtracts slope |i + o - j|.
template <class Shape>
QKV_DEVICE void subtract_distances(const DeviceArray& slopes, const BlockPlace& place,
                                   int first_key, ScoreTile<Shape>& s) {
  const float slope =
      real_at(slopes.type, slopes.data, place.b * slopes.entry + place.h * slopes.head);
  for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float distance = distance_of(place, row, first_key + j + e);
      float& score = s.at[m][n][2 * half + e];
      score = rounded_sum(score, -rounded_product(slope, distance));
    }
  });
}

// Replaces products by scores: applies scale, soft-cap, ALiBi and bias. With a soft-cap, calls
// on_slope(m, n, e, slope) for each score s.at[m][n][e]: `slope` is the derivative 1 - tanh^2.
template <class Shape, class OnSlope>
QKV_DEVICE void make_scores(const ForwardArguments& a, const BlockPlace& place, int first_key,
                            ScoreTile<Shape>& s, const OnSlope& on_slope) {
  for_each_pair<Shape>([&](int m, int half, int n, int, int) {
    QKV_UNROLL
    for (int e = 2 * half; e < 2 * half + 2; ++e) {
      s.at[m][n][e] = rounded_product(s.at[m][n][e], a.scale);
    }
  });
  if (a.softcap > 0) {
    // cap tanh(z / cap) = cap (1 - 2 / (1 + exp(2 z / cap)))
    for_each_pair<Shape>([&](int m, int half, int n, int, int) {
      QKV_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const float power = exp2_of(rounded_product(s.at[m][n][e], a.twice_over_cap));
        const float r = reciprocal(1 + power);
        s.at[m][n][e] = rounded_product(a.softcap, 1 - 2 * r);
        on_slope(m, n, e, 4 * r * (1 - r));
      }
    });
  }
  if (a.alibi.data != nullptr) subtract_distances<Shape>(a.alibi, place, first_key, s);
  if (a.bias.data != nullptr) add_biases<Shape>(a.bias, s);
}

// Sets the scores of pairs that Keep forbids to -inf.
template <class Shape>
QKV_DEVICE void apply_keep(ScoreTile<Shape>& s) {
  const PairPlaces<Shape, 1> places(Shape::kKeep);
  for_each_pair<Shape>([&](int m, int half, int n, int, int) {
    const std::uint32_t at = places.at(m, half, n);
    const std::uint32_t both = load_shared(at & ~3U) >> (at % 4 * 8);
    if ((both & 0xFFU) == 0) s.at[m][n][2 * half] = minus_infinity();
    if ((both & 0xFF00U) == 0) s.at[m][n][2 * half + 1] = minus_infinity();
  });
}

// Sets the scores of keys that are padding to -inf.
template <class Shape>
QKV_DEVICE void apply_padding(ScoreTile<Shape>& s) {
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int j = n * 8 + thread_index() % 4 * 2 + e;
      if (load_shared(Shape::kPadding + j * 4) == 0) continue;
      QKV_UNROLL
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        s.at[m][n][e] = s.at[m][n][2 + e] = minus_infinity();
      }
    }
  }
}

// Sets the scores of pairs that causal mask, window or lengths forbid to -inf.
template <class Shape>
QKV_DEVICE void apply_bounds(int tile, ScoreTile<Shape>& s) {
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = row_in_block<Shape>(m, half);
      const int begin = static_cast<int>(load_shared(Shape::kBounds + row * 8));
      const int end = static_cast<int>(load_shared(Shape::kBounds + row * 8 + 4));
      QKV_UNROLL
      for (int n = 0; n < Shape::kKeyTiles; ++n) {
        QKV_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int j = tile * Shape::kKeys + n * 8 + thread_index() % 4 * 2 + e;
          if (j < begin || j >= end) s.at[m][n][2 * half + e] = minus_infinity();
        }
      }
    }
  }
}

// Whether make_scores() is called. If not, scores stay products, and exponents apply the scale.
template <bool kEvery>
QKV_DEVICE bool is_scaled(const ForwardArguments& a) {
  return kEvery && (a.softcap > 0 || a.bias.data != nullptr || a.alibi.data != nullptr ||
                    !a.scales_in_exponent);
}
// The factor f of a score s in 2^(f s).
template <bool kEvery>
QKV_DEVICE float exponent_factor(const ForwardArguments& a) {
  return is_scaled<kEvery>(a) ? kLog2E : rounded_product(a.scale, kLog2E);
}

// Replaces products by final scores. `inside`: causal mask, window and lengths allow all pairs of
// the tile. on_slope: see make_scores().
template <class Shape, bool kEvery, class OnSlope>
QKV_DEVICE void finish_scores(const ForwardArguments& a, const BlockPlace& place, bool inside,
                              int first_key, ScoreTile<Shape>& s, const OnSlope& on_slope) {
  if constexpr (kEvery) {
    if (is_scaled<kEvery>(a)) make_scores<Shape>(a, place, first_key, s, on_slope);
    if (a.keep.data != nullptr) apply_keep<Shape>(s);
    if (a.padding.data != nullptr) apply_padding<Shape>(s);
  }
  if (!inside) apply_bounds<Shape>(first_key / Shape::kKeys, s);
}
template <class Shape, bool kEvery>
QKV_DEVICE void finish_scores(const ForwardArguments& a, const BlockPlace& place, bool inside,
                              int first_key, ScoreTile<Shape>& s) {
  finish_scores<Shape, kEvery>(a, place, inside, first_key, s, [](int, int, int, float) {});
}

// Calls f(m, n, e) for each of this thread's pairs at[m][n][e] that dropout drops.
template <class Shape, class F>
QKV_DEVICE void for_each_dropped(const ForwardArguments& a, const BlockPlace& place, int tile,
                                 const F& f) {
  const int lane = thread_index() % kLanes;
  const int odd = lane % 2;
  // Two lanes share a group of four keys and two rows: the even lane computes the dropout words of
  // the first row, the odd lane those of the second.
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    const auto i = static_cast<std::uint32_t>(place.first + row_in_block<Shape>(m, odd));
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
      const auto group =
          static_cast<std::uint32_t>((tile * Shape::kKeys + n * 8) / 4 + lane % 4 / 2);
      const std::uint32_t own = kept_bits(group, i, static_cast<std::uint32_t>(place.h),
                                          static_cast<std::uint32_t>(place.b), a.dropout_key[0],
                                          a.dropout_key[1], a.dropout_threshold);
      const std::uint32_t other = exchange(own, 1);
      const std::uint32_t first = (odd == 0 ? own : other) >> (2 * odd);
      const std::uint32_t second = (odd == 0 ? other : own) >> (2 * odd);
      if ((first & 1U) == 0) f(m, n, 0);
      if ((first & 2U) == 0) f(m, n, 1);
      if ((second & 1U) == 0) f(m, n, 2);
      if ((second & 2U) == 0) f(m, n, 3);
    }
  }
}

// Sets the weights that dropout drops to 0.
template <class Shape>
QKV_DEVICE void drop_weights(const ForwardArguments& a, const BlockPlace& place, int tile,
                             ScoreTile<Shape>& p) {
  for_each_dropped<Shape>(a, place, tile, [&](int m, int n, int e) { p.at[m][n][e] = 0; });
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_OPTIONS_H_
