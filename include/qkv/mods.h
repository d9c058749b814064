// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODS_H_
#define QKV_MODS_H_

#include <complex>
#include <concepts>
#include <iterator>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include <qkv/dual.h>
#include <qkv/export.h>
#include <qkv/instances.h>
#include <qkv/soft_cap.h>
#include <qkv/tile_loops.h>
#include <qkv/view.h>

namespace qkv {

namespace detail {

struct TileClasses;

// What compilers print of a function that does not fit is one of these lines, because the first
// that fails ends the checks, and nothing is instantiated with the function.

template <class F>
consteval bool is_score_function() {
  if constexpr (!std::invocable<const F&, float, At>) {
    static_assert(
        !std::invocable<F&, float, At>,
        "score_mod: the function is called on several threads at once and must not change "
        "itself: remove `mutable`");
    static_assert(std::invocable<F&, float, At>,
                  "score_mod: the function must be callable as f(score, qkv::At): "
                  "[=](auto s, At at) { return s - abs(at.i - at.j); }");
    return false;
  } else if constexpr (!std::invocable<const F&, Dual<float>, At>) {
    static_assert(std::invocable<const F&, Dual<float>, At>,
                  "score_mod: write the score as `auto s`: its derivative comes from calling the "
                  "function on qkv::Dual");
    return false;
  } else {
    using Score = std::invoke_result_t<const F&, float, At>;
    constexpr bool returns_score = std::is_arithmetic_v<Score> && !std::same_as<Score, bool>;
    static_assert(returns_score, "score_mod: the function must return the new score");
    return returns_score;
  }
}

template <class F>
consteval bool is_mask_function() {
  if constexpr (!std::invocable<const F&, At>) {
    static_assert(!std::invocable<F&, At>,
                  "mask_mod: the function is called on several threads at once and must not change "
                  "itself: remove `mutable`");
    static_assert(std::invocable<F&, At>,
                  "mask_mod: the function must be callable as f(qkv::At): "
                  "[=](At at) { return at.j <= at.i; }");
    return false;
  } else {
    constexpr bool returns_answer = std::integral<std::invoke_result_t<const F&, At>>;
    static_assert(returns_answer,
                  "mask_mod: the function must return a bool: whether query at.i may attend to key "
                  "at.j");
    return returns_answer;
  }
}

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
  // Only after precompute(); null otherwise.
  std::shared_ptr<const detail::TileClasses> classes = nullptr;

  static constexpr std::string_view kName = "mask_mod";
};

// auto decay = score_mod([=](auto s, At at) { return s - slope[at.h] * abs(at.i - at.j); });
// The callable is called for whole tiles from several threads at once, on float, double and their
// duals (its derivative), and also for masked pairs (whose result is discarded). It must be
// pure and must not throw. Write the parameter as `auto` so that gradients flow.
template <class F>
ScoreMod score_mod(F f) {
  if constexpr (detail::is_score_function<F>()) {
    return {std::make_shared<const F>(std::move(f)), detail::kScoreInstances<F>,
            std::size(detail::kScoreInstances<F>), nullptr};
  } else {
    return {};
  }
}

// auto same = mask_mod([=](At at) { return doc[at.i] == doc[at.j]; });  Pure, must not throw.
template <class F>
MaskMod mask_mod(F f) {
  if constexpr (detail::is_mask_function<F>()) {
    return {std::make_shared<const F>(std::move(f)), detail::kMaskInstances<F>,
            std::size(detail::kMaskInstances<F>)};
  } else {
    return {};
  }
}

// The same mask, evaluated once for every pair of a call with these Tq and Tk, so that calls
// skip the tiles of 64 queries x 64 keys that are fully masked, and do not evaluate it in those
// that are fully allowed. B = 1 (H = 1) says that the mask is the same for all batch entries
// (heads); otherwise they are the call's. Takes B * H * Tq * Tk / 4096 bytes. Data the function
// reads must not change afterwards. Throws Error if a size is negative or above 2^31 - 1, or the
// mask is empty; a call with other sizes, or with packed sequences, throws too.
QKV_API MaskMod precompute(const MaskMod& mask, Index Tq, Index Tk, Index B = 1, Index H = 1);

}  // namespace qkv

#endif  // QKV_MODS_H_
