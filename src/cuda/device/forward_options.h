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

// ---- options --------------------------------------------------------------------------------

// The tiles of a bias and of Keep that a block reads, [kRows, kKeys], are copied to shared memory
// if their rows can be read 16 bytes at a time, and read element by element if not.

// The place in shared memory of column j of a row of elements of kBytes bytes. Chunks of 16 bytes
// are exchanged so that eight rows' chunks lie in different banks.
template <class Shape, int kBytes>
QKV_DEVICE std::uint32_t staged(std::uint32_t tile, int row, int j) {
  constexpr int kPitch = Shape::kKeys * kBytes;
  constexpr int kChunks = kPitch / 16;
  constexpr int kRowsOfBanks = kPitch < 128 ? 128 / kPitch : 1;
  constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;
  const int chunk = j * kBytes / 16 ^ (row / kRowsOfBanks & kMask);
  return tile + static_cast<std::uint32_t>(row * kPitch + chunk * 16 + j * kBytes % 16);
}

// Copies a tile of elements of kBytes bytes. Elements outside of the matrix become 0.
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

template <class Shape>
QKV_DEVICE void stage_options(const ForwardArguments& a, const BlockPlace& place,
                              std::int64_t bias_offset, std::int64_t keep_offset, int tile) {
  const int first_key = tile * Shape::kKeys;
  if (a.keep.vectors) {
    stage<Shape, 1>(Shape::kKeep, static_cast<const unsigned char*>(a.keep.data) + keep_offset,
                    a.keep.row, place, first_key);
  }
  if (!a.bias.vectors) return;
  if (a.bias.type == Element::kFloat32) {
    stage<Shape, 4>(Shape::kBias, static_cast<const float*>(a.bias.data) + bias_offset, a.bias.row,
                    place, first_key);
  } else {
    stage<Shape, 2>(Shape::kBias, static_cast<const std::uint16_t*>(a.bias.data) + bias_offset,
                    a.bias.row, place, first_key);
  }
}

// Calls f(m, half, n, row, j) for each pair of this thread's scores s.at[m][n][2 half] and the
// next: `row` is the query in the block, `j` the key in the tile.
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

// A bias of -inf masks the pair, also if the score is NaN. kAdds: else it is added.
template <bool kAdds>
QKV_DEVICE void add_bias(float bias, float& score) {
  if (bias == minus_infinity()) {
    score = bias;
  } else if (kAdds) {
    score = rounded_sum(score, bias);
  }
}

// Applies the bias of a tile.
template <class Shape, bool kAdds>
QKV_DEVICE void add_biases(const DeviceArray& x, const BlockPlace& place, std::int64_t offset,
                           int first_key, ScoreTile<Shape>& s) {
  if (!x.vectors) {
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      if (place.first + row >= place.Tq) return;
      const std::int64_t at = offset + (place.first + row) * x.row + (first_key + j) * x.col;
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (first_key + j + e >= place.Tk) continue;
        add_bias<kAdds>(real_at(x.type, x.data, at + e * x.col), s.at[m][n][2 * half + e]);
      }
    });
  } else if (x.type == Element::kFloat32) {
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      const std::uint32_t at = staged<Shape, 4>(Shape::kBias, row, j);
      add_bias<kAdds>(bits_to_float(load_shared(at)), s.at[m][n][2 * half]);
      add_bias<kAdds>(bits_to_float(load_shared(at + 4)), s.at[m][n][2 * half + 1]);
    });
  } else if (x.type == Element::kBFloat16) {
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      const std::uint32_t both = load_shared(staged<Shape, 2>(Shape::kBias, row, j));
      add_bias<kAdds>(bits_to_float(both << 16), s.at[m][n][2 * half]);
      add_bias<kAdds>(bits_to_float(both & 0xFFFF0000U), s.at[m][n][2 * half + 1]);
    });
  } else {
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      const std::uint32_t both = load_shared(staged<Shape, 2>(Shape::kBias, row, j));
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        add_bias<kAdds>(widened(Float16Tiles{}, static_cast<std::uint16_t>(both >> (16 * e))),
                        s.at[m][n][2 * half + e]);
      }
    });
  }
}

// Makes scores of products: scale, soft-cap, bias, ALiBi.
template <class Shape>
QKV_DEVICE void make_scores(const ForwardArguments& a, const BlockPlace& place,
                            std::int64_t bias_offset, int tile, ScoreTile<Shape>& s) {
  const int first_key = tile * Shape::kKeys;
  for_each_pair<Shape>([&](int m, int half, int n, int, int) {
    QKV_UNROLL
    for (int e = 2 * half; e < 2 * half + 2; ++e) {
      s.at[m][n][e] = rounded_product(s.at[m][n][e], a.scale);
    }
  });
  if (a.softcap > 0) {
    // cap tanh(z / cap) = cap (1 - 2 / (1 + exp(2 z / cap)))
    const float twice_over_cap = divide(2 * kLog2E, a.softcap);
    for_each_pair<Shape>([&](int m, int half, int n, int, int) {
      QKV_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const float power = exp2_of(rounded_product(s.at[m][n][e], twice_over_cap));
        s.at[m][n][e] = rounded_product(a.softcap, 1 - 2 * reciprocal(1 + power));
      }
    });
  }
  if (a.bias.data != nullptr) add_biases<Shape, true>(a.bias, place, bias_offset, first_key, s);
  if (a.alibi.data != nullptr) {
    const float slope =
        real_at(a.alibi.type, a.alibi.data, place.b * a.alibi.entry + place.h * a.alibi.head);
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        const std::int64_t distance = place.first + row + place.diagonal - (first_key + j + e);
        float& score = s.at[m][n][2 * half + e];
        const float product =
            rounded_product(slope, static_cast<float>(distance < 0 ? -distance : distance));
        score = rounded_sum(score, -product);
      }
    });
    if (a.bias.data != nullptr) add_biases<Shape, false>(a.bias, place, bias_offset, first_key, s);
  }
}

// -inf for the pairs that Keep forbids.
template <class Shape>
QKV_DEVICE void apply_keep(const DeviceArray& x, const BlockPlace& place, std::int64_t offset,
                           int first_key, ScoreTile<Shape>& s) {
  if (x.vectors) {
    for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
      const std::uint32_t at = staged<Shape, 1>(Shape::kKeep, row, j);
      const std::uint32_t both = load_shared(at & ~3U) >> (at % 4 * 8);
      if ((both & 0xFFU) == 0) s.at[m][n][2 * half] = minus_infinity();
      if ((both & 0xFF00U) == 0) s.at[m][n][2 * half + 1] = minus_infinity();
    });
    return;
  }
  for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
    if (place.first + row >= place.Tq) return;
    const std::int64_t at = offset + (place.first + row) * x.row + (first_key + j) * x.col;
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (first_key + j + e >= place.Tk) continue;
      if (integer_at(x.type, x.data, at + e * x.col) == 0) {
        s.at[m][n][2 * half + e] = minus_infinity();
      }
    }
  });
}

// -inf for the keys that are padding.
template <class Shape>
QKV_DEVICE void apply_padding(const DeviceArray& x, const BlockPlace& place, int first_key,
                              ScoreTile<Shape>& s) {
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int j = first_key + n * 8 + thread_index() % 4 * 2 + e;
      if (j >= place.Tk || integer_at(x.type, x.data, place.b * x.entry + j * x.col) == 0) continue;
      QKV_UNROLL
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        s.at[m][n][e] = s.at[m][n][2 + e] = minus_infinity();
      }
    }
  }
}

// -inf for the keys that causal mask, window and lengths forbid.
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

// Sets the weights that dropout drops to 0.
template <class Shape>
QKV_DEVICE void drop_weights(const ForwardArguments& a, const BlockPlace& place, int tile,
                             ScoreTile<Shape>& p) {
  const int lane = thread_index() % kLanes;
  const int odd = lane % 2;
  // A group of four keys belongs to two lanes: the even one draws for the first of their two rows,
  // the odd one for the second.
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
      float(&x)[4] = p.at[m][n];
      if ((first & 1U) == 0) x[0] = 0;
      if ((first & 2U) == 0) x[1] = 0;
      if ((second & 1U) == 0) x[2] = 0;
      if ((second & 2U) == 0) x[3] = 0;
    }
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_OPTIONS_H_
