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
struct ExpressionProgram;

// For an unsuitable function the compiler prints one of the lines below: the checks stop at the
// first that fails, before anything is instantiated with the function.

template <class F>
consteval bool is_score_function() {
  if constexpr (!std::invocable<const F&, float, At>) {
    static_assert(
        !std::invocable<F&, float, At>,
        "score_mod: the function is called on several threads at once and must not change "
        "itself: remove `mutable`");
    static_assert(
        std::invocable<F&, float, At>,
        "score_mod: the function must be callable as f(score, qkv::At): "
        "[=](auto s, At at) { return s - abs(at.i - at.j); }; if it is, the error is above");
    return false;
  } else if constexpr (!std::invocable<const F&, Dual<float>, At>) {
    static_assert(std::invocable<const F&, Dual<float>, At>,
                  "score_mod: write the score as `auto s`, since its derivative comes from calling "
                  "the function on qkv::Dual; if it is `auto`, the error is above");
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
                  "[=](At at) { return at.j <= at.i; }; if it is, the error is above");
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

// A user's change to the scores, made by score_mod. It acts after the soft-cap and before bias and
// masks. It holds a copy of the callable, which copies of the ScoreMod share.
struct ScoreMod {
  std::shared_ptr<const void> callable;
  const detail::ScoreInstance* instances = nullptr;
  int instance_count = 0;
  // Only for gradient checks by complex step; null otherwise.
  void (*complex128)(const void*, const detail::ScoreTile<std::complex<double>>&) = nullptr;
  // The program of a mod that was made from an expression (qkv/expression.h); null otherwise.
  std::shared_ptr<const detail::ExpressionProgram> program = nullptr;
};

// A user's mask, made by mask_mod. The function returns true for a pair that may attend.
struct MaskMod {
  std::shared_ptr<const void> callable;
  const detail::MaskInstance* instances = nullptr;
  int instance_count = 0;
  // Set by precompute(); null otherwise.
  std::shared_ptr<const detail::TileClasses> classes = nullptr;
  // The program of a mod that was made from an expression (qkv/expression.h); null otherwise.
  std::shared_ptr<const detail::ExpressionProgram> program = nullptr;

  static constexpr std::string_view kName = "mask_mod";
};

// Makes a change to the scores from a function of a score and its position:
//   auto decay = score_mod([=](auto s, At at) { return s - slope[at.h] * abs(at.i - at.j); });
// The callable is called for whole tiles from several threads at once, on float, double and their
// duals (for its derivative), also for masked pairs, whose result is discarded. It must be pure and
// must not throw. Its parameter must be `auto`, so that it can be called on duals.
template <class F>
ScoreMod score_mod(F f) {
  if constexpr (detail::is_score_function<F>()) {
    return {std::make_shared<const F>(std::move(f)), detail::kScoreInstances<F>,
            std::size(detail::kScoreInstances<F>), nullptr};
  } else {
    return {};
  }
}

// Makes a mask from a function that must be pure and must not throw:
//   auto same = mask_mod([=](At at) { return doc[at.i] == doc[at.j]; });
template <class F>
MaskMod mask_mod(F f) {
  if constexpr (detail::is_mask_function<F>()) {
    return {std::make_shared<const F>(std::move(f)), detail::kMaskInstances<F>,
            std::size(detail::kMaskInstances<F>)};
  } else {
    return {};
  }
}

// Returns the mask evaluated once for every pair of a call with these Tq and Tk. Calls then skip
// the tiles of 64 queries x 64 keys that are fully masked, and do not evaluate the mask in tiles
// that are fully allowed. B = 1 (H = 1) means that the mask is equal for all batch entries (heads);
// any other B (H) must be the call's. Takes B * H * Tq * Tk / 4096 bytes. Data that the function
// reads must not change afterwards. Throws Error if a size is negative or above 2^31 - 1, or `mask`
// holds no function; a call with other sizes, or with packed sequences, throws too.
QKV_API MaskMod precompute(const MaskMod& mask, Index Tq, Index Tk, Index B = 1, Index H = 1);

}  // namespace qkv

#endif  // QKV_MODS_H_
