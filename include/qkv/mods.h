// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODS_H_
#define QKV_MODS_H_

#include <complex>
#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include <qkv/dual.h>
#include <qkv/view.h>

namespace qkv {

// Where a score stands: batch entry (the sequence, when packed), query head, query, key; counted
// from 0 inside their sequence. 32 bits, because such indices convert to float at vector speed.
struct At {
  std::int32_t b = 0;
  std::int32_t h = 0;
  std::int32_t i = 0;
  std::int32_t j = 0;
};

namespace detail {

// A rectangle of scores of one (b, h), element (0, 0) standing at `at`. `slopes`, when not null,
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

template <class F, class T>
void apply_score(const void* callable, const ScoreTile<T>& tile) {
  const F& f = *static_cast<const F*>(callable);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    T* scores = tile.scores + r * tile.row_stride;
    if (tile.slopes == nullptr) {
      for (std::int32_t c = 0; c < tile.cols; ++c) {
        scores[c] = static_cast<T>(f(scores[c], shifted(tile.at, r, c)));
      }
      continue;
    }
    T* slopes = tile.slopes + r * tile.row_stride;
    for (std::int32_t c = 0; c < tile.cols; ++c) {
      // The value as without slopes: a constant of another type than T may round otherwise in Dual,
      // and both passes must see the same scores.
      const At at = shifted(tile.at, r, c);
      slopes[c] *= static_cast<Dual<T>>(f(Dual<T>{scores[c], T(1)}, at)).slope;
      scores[c] = static_cast<T>(f(scores[c], at));
    }
  }
}

template <class F>
void apply_mask(const void* callable, const MaskTile& tile) {
  const F& f = *static_cast<const F*>(callable);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    std::uint8_t* allowed = tile.allowed + r * tile.row_stride;
    for (std::int32_t c = 0; c < tile.cols; ++c) {
      const bool may_attend = static_cast<bool>(f(shifted(tile.at, r, c)));
      allowed[c] = static_cast<std::uint8_t>(allowed[c] & static_cast<std::uint8_t>(may_attend));
    }
  }
}

// One compiled instance of a user's function for one CPU target. The tables below have one row
// today, the baseline; kernels for wider targets add rows, found by `target`.
enum class InstanceTarget : std::uint8_t { kBaseline };

struct ScoreInstance {
  InstanceTarget target;
  void (*f32)(const void*, const ScoreTile<float>&);
  void (*f64)(const void*, const ScoreTile<double>&);
};

struct MaskInstance {
  InstanceTarget target;
  void (*apply)(const void*, const MaskTile&);
};

template <class F>
inline constexpr ScoreInstance kScoreInstances[] = {
    {InstanceTarget::kBaseline, &apply_score<F, float>, &apply_score<F, double>}};

template <class F>
inline constexpr MaskInstance kMaskInstances[] = {{InstanceTarget::kBaseline, &apply_mask<F>}};

}  // namespace detail

// A user's change to the scores, made by score_mod. Acts after soft-cap, before bias and masks.
// Holds a copy of the callable; copying a ScoreMod shares it.
struct ScoreMod {
  std::shared_ptr<const void> callable;
  const detail::ScoreInstance* instances = nullptr;
  int instance_count = 0;
  // Only for gradient checks by complex step; null otherwise.
  void (*complex128)(const void*, const detail::ScoreTile<std::complex<double>>&) = nullptr;
};

// A user's mask, made by mask_mod: true means "may attend".
struct MaskMod {
  std::shared_ptr<const void> callable;
  const detail::MaskInstance* instances = nullptr;
  int instance_count = 0;
};

// auto decay = score_mod([=](auto s, At at) { return s - slope[at.h] * abs(at.i - at.j); });
// The callable is called for whole tiles from several threads at once, on float, double and their
// duals (its derivative), and also at masked places (the result is dropped there). It must be
// pure and must not throw. Write the parameter as `auto` so that gradients flow.
template <class F>
ScoreMod score_mod(F f) {
  static_assert(std::invocable<const F&, float, At>,
                "a score function is called as f(score, qkv::At)");
  static_assert(std::invocable<const F&, Dual<float>, At>,
                "write the score as `auto s`: its derivative comes from calling it on qkv::Dual");
  return {std::make_shared<const F>(std::move(f)), detail::kScoreInstances<F>, 1, nullptr};
}

// auto same = mask_mod([=](At at) { return doc[at.i] == doc[at.j]; });  Pure, must not throw.
template <class F>
  requires std::predicate<const F&, At>
MaskMod mask_mod(F f) {
  return {std::make_shared<const F>(std::move(f)), detail::kMaskInstances<F>, 1};
}

}  // namespace qkv

#endif  // QKV_MODS_H_
