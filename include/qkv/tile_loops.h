// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TILE_LOOPS_H_
#define QKV_TILE_LOOPS_H_

#include <cstdint>
#include <type_traits>

#include <qkv/dual.h>
#include <qkv/view.h>

namespace qkv {

// The position of a score: batch entry (for packed sequences, the sequence), query head, query and
// key. Queries and keys are counted from 0 within their sequence. The indices have 32 bits, which
// convert to float at vector speed.
struct At {
  std::int32_t b = 0;
  std::int32_t h = 0;
  std::int32_t i = 0;
  std::int32_t j = 0;
};

namespace detail {

// The numbers of queries and keys of a call or, for packed sequences, of one sequence.
struct Lengths {
  std::int32_t Tq = 0;
  std::int32_t Tk = 0;
};

// A rectangle [rows][cols] of the scores of one (b, h); `at` is the position of element (0, 0), and
// `lengths` are those of its sequence. The loops replace each score s by f(s) and, if `slopes` is
// not null, multiply the pair's element of `slopes` by the derivative of f at s. (These slopes are
// derivatives, not ALiBi's slopes.) Rows of both arrays are row_stride elements apart.
template <class T>
struct ScoreTile {
  At at;
  Lengths lengths;
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  Index row_stride = 0;
  T* scores = nullptr;
  T* slopes = nullptr;
};

// A rectangle [rows][cols] of the mask of one (b, h), with the position and strides of a ScoreTile.
// Each element of `allowed`, 0 or 1, is and-ed with the result of the user's function.
struct MaskTile {
  At at;
  Lengths lengths;
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

// The loops that apply a user's function to a tile, with one source for all CPU targets: they are
// inlined into the instances of <qkv/instances.h>, each of which is compiled for its target.

// QKV_PLAIN_LOOP tells GCC that no element of a tile aliases an array that the user's
// function reads.
#if defined(__clang__)
#define QKV_PLAIN_LOOP
#define QKV_ALWAYS_INLINE __attribute__((always_inline))
#elif defined(__GNUC__)
#define QKV_PLAIN_LOOP _Pragma("GCC ivdep")
#define QKV_ALWAYS_INLINE __attribute__((always_inline))
#else
#define QKV_PLAIN_LOOP
#define QKV_ALWAYS_INLINE
#endif

namespace qkv::detail {

// The type of the callable in a loop. A trivially copyable callable is copied, so that the compiler
// sees that its members do not change.
template <class F>
using Held = std::conditional_t<std::is_trivially_copyable_v<F>, const F, const F&>;

template <class F, class T>
QKV_ALWAYS_INLINE inline void score_row(const F& f, const At at, std::int32_t cols, T* scores) {
  QKV_PLAIN_LOOP
  for (std::int32_t c = 0; c < cols; ++c) {
    scores[c] = static_cast<T>(f(scores[c], shifted(at, 0, c)));
  }
}

template <class F, class T>
QKV_ALWAYS_INLINE inline void score_row(const F& f, const At at, std::int32_t cols, T* scores,
                                        T* slopes) {
  QKV_PLAIN_LOOP
  for (std::int32_t c = 0; c < cols; ++c) {
    // The score is computed as it is without slopes, not taken from the Dual: in a Dual a constant
    // of another type than T may round differently, and the forward and the backward pass must see
    // the same scores.
    const At here = shifted(at, 0, c);
    const T score = scores[c];
    slopes[c] *= static_cast<Dual<T>>(f(Dual<T>{score, T(1)}, here)).slope;
    scores[c] = static_cast<T>(f(score, here));
  }
}

template <class F, class T>
QKV_ALWAYS_INLINE inline void apply_score(const void* callable, const ScoreTile<T>& tile) {
  Held<F> f = *static_cast<const F*>(callable);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    const At at = shifted(tile.at, r, 0);
    T* scores = tile.scores + r * tile.row_stride;
    if (tile.slopes == nullptr) {
      score_row<F, T>(f, at, tile.cols, scores);
    } else {
      score_row<F, T>(f, at, tile.cols, scores, tile.slopes + r * tile.row_stride);
    }
  }
}

template <class F>
QKV_ALWAYS_INLINE inline void mask_row(const F& f, const At at, std::int32_t cols,
                                       std::uint8_t* allowed) {
  QKV_PLAIN_LOOP
  for (std::int32_t c = 0; c < cols; ++c) {
    const bool may_attend = static_cast<bool>(f(shifted(at, 0, c)));
    allowed[c] = static_cast<std::uint8_t>(allowed[c] & static_cast<std::uint8_t>(may_attend));
  }
}

// Stands in for mask_row() if Held does not copy the callable (such as one with a std::vector). The
// callable's members would be reloaded for each pair, since byte stores may alias anything. Writing
// the results to a local buffer first avoids these loads and is several times as fast.
template <class F>
QKV_ALWAYS_INLINE inline void mask_row_in_blocks(const F& f, const At at, std::int32_t cols,
                                                 std::uint8_t* allowed) {
  constexpr std::int32_t kBlock = 64;
  std::uint8_t answers[kBlock];
  for (std::int32_t first = 0; first < cols; first += kBlock) {
    const std::int32_t count = cols - first < kBlock ? cols - first : kBlock;
    QKV_PLAIN_LOOP
    for (std::int32_t c = 0; c < count; ++c) {
      const bool may_attend = static_cast<bool>(f(shifted(at, 0, first + c)));
      answers[c] = static_cast<std::uint8_t>(may_attend);
    }
    QKV_PLAIN_LOOP
    for (std::int32_t c = 0; c < count; ++c) {
      allowed[first + c] = static_cast<std::uint8_t>(allowed[first + c] & answers[c]);
    }
  }
}

template <class F>
QKV_ALWAYS_INLINE inline void apply_mask(const void* callable, const MaskTile& tile) {
  Held<F> f = *static_cast<const F*>(callable);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    const At at = shifted(tile.at, r, 0);
    std::uint8_t* allowed = tile.allowed + r * tile.row_stride;
    if constexpr (std::is_trivially_copyable_v<F>) {
      mask_row<F>(f, at, tile.cols, allowed);
    } else {
      mask_row_in_blocks<F>(f, at, tile.cols, allowed);
    }
  }
}

}  // namespace qkv::detail

// The macros are private to this header.
#undef QKV_PLAIN_LOOP
#undef QKV_ALWAYS_INLINE

#endif  // QKV_TILE_LOOPS_H_
