// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_SCORES_H_
#define QKV_TESTS_ATTENTION_SCORES_H_

#include <array>
#include <cmath>
#include <string_view>

#include <qkv/options.h>
#include <qkv/tensor.h>

#include "core/problem.h"
#include "tests/attention/bits.h"

// The kinds of scores, for tests to iterate over.
namespace qkv::test {

enum class ScoreKind { kDot, kBilinear, kAdditive, kCosine };  // kDot: Dot and ScaledDot

inline constexpr std::array kScoreKinds{ScoreKind::kDot, ScoreKind::kBilinear, ScoreKind::kAdditive,
                                        ScoreKind::kCosine};

inline std::string_view name_of(ScoreKind kind) {
  switch (kind) {
    case ScoreKind::kDot:
      return "dot";
    case ScoreKind::kBilinear:
      return "bilinear";
    case ScoreKind::kAdditive:
      return "additive";
    case ScoreKind::kCosine:
      break;
  }
  return "cosine";
}

inline ScoreKind kind_of(const core::Problem& p) {
  if (p.product == core::PairProduct::kTanh) return ScoreKind::kAdditive;
  if (p.query_maps.product.given()) return ScoreKind::kBilinear;
  for (const core::RowMap& map : p.query_maps.maps()) {
    if (std::holds_alternative<core::UnitRows>(map)) return ScoreKind::kCosine;
  }
  return ScoreKind::kDot;
}

// Whether queries and keys must have the same width.
inline bool has_one_width(ScoreKind kind) {
  return kind == ScoreKind::kDot || kind == ScoreKind::kCosine;
}

// The sizes of a score's parameters.
struct ScoreSizes {
  Index H = 1;  // W, Wq and v of the bilinear and additive score are per head
  Index Dq = 1, Dk = 1, U = 1;
  double projected = 1;  // the deviation of projections of normal rows
};

// A score with seeded parameters, which it owns.
class SeededScore {
 public:
  SeededScore(ScoreKind kind, const ScoreSizes& s, DType d, std::uint64_t seed = 90) : kind_(kind) {
    if (kind == ScoreKind::kBilinear) {
      w = scaled(normal({s.H, s.Dq, s.Dk}, seed, d), s.projected / root(s.Dq));
    } else if (kind == ScoreKind::kAdditive) {
      wq = scaled(normal({s.H, s.U, s.Dq}, seed, d), s.projected / root(s.Dq));
      wk = scaled(normal({s.U, s.Dk}, seed + 1, d), s.projected / root(s.Dk));
      v = scaled(normal({s.H, s.U}, seed + 2, d), 3 / root(s.U));
      b = scaled(normal(Dims(s.U), seed + 3, d), s.projected);
    }
  }

  // The score of all heads, or of heads h0 .. h1-1.
  Score score() const {
    if (kind_ == ScoreKind::kBilinear) return Bilinear{w};
    if (kind_ == ScoreKind::kAdditive) return Additive{wq, wk, v, b};
    if (kind_ == ScoreKind::kCosine) return Cosine{};
    return ScaledDot{};
  }
  Score heads(Index h0, Index h1) const {
    const auto cut = [&](const Tensor& x) { return slice(x.view(), 0, h0, h1); };
    if (kind_ == ScoreKind::kBilinear) return Bilinear{cut(w)};
    if (kind_ == ScoreKind::kAdditive) return Additive{cut(wq), wk, cut(v), b};
    if (kind_ == ScoreKind::kCosine) return Cosine{};
    return ScaledDot{};
  }

  Tensor w, wq, wk, v, b;

 private:
  static double root(Index n) { return std::sqrt(static_cast<double>(n)); }
  static Tensor scaled(Tensor x, double by) {
    for (Index n = 0; n < x.element_count(); ++n) {
      const double value = core::load<double>(x.dtype(), x.view().data(), n);
      core::store(x.dtype(), x.view().data(), n, value * by);
    }
    return x;
  }

  ScoreKind kind_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_SCORES_H_
