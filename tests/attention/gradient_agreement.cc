// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/gradient_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "reference/backward.h"
#include "runtime/tasks.h"
#include "tests/attention/score_bounds.h"
#include "tests/support/compare.h"

namespace qkv::test {

using core::Problem;
using core::Sequence;
using reference::GradientRow;
using reference::Prepared;
using reference::QueryAt;

Same same_on(std::string_view path, const Options& options) {
  if (!fuses(path)) return Same::kNothing;
  return std::holds_alternative<Additive>(options.score) ? Same::kProjections : Same::kScores;
}

// The loop over all pairs that computes the bounds, from the reference's weights.
template <class T>
class GradientBounds::Pass {
 public:
  Pass(GradientBounds& to, const BackwardCall& call, const Saved& saved, Same same, Rounded rounded)
      : to_(to),
        equal_scores_(same == Same::kScores),
        rounded_(rounded),
        shapes_(call),
        scores_(p_, same) {
    attn::resolve("bounds", {}, call.inputs, call.options, p_);
    from_ = attn::bind_sources(p_, saved, call.sources);
    targets_ = attn::bind_gradients(p_, call.inputs, call.options, shapes_.views());
    keep_factor_ = 1 / (1 - p_.dropout);
  }

  void run() {
    core::MeasuringArena measure;
    take(measure);
    Context context;
    runtime::Call run(context, "bounds", measure.bytes(), reference::prepare_scratch<T>(p_));
    take(run.shared());
    reference::prepare(p_, x_, run);
    const Index queries = p_.Tq * p_.H / std::max<Index>(1, p_.G);  // of one key head
    scores_.begin(targets_, to_.bounds_);
    begin(v_sum_, "v", targets_.v, p_.G * p_.k_rows * p_.E, queries);
    if (rounded_ != Rounded::kNot) scores_.set_tiny(v_sum_.tiny = kSmallest);
    begin(bias_sum_, "bias", targets_.bias, p_.H * p_.Tq * p_.Tk, 1);
    begin(alibi_sum_, "alibi", targets_.alibi, p_.H, p_.q_rows * p_.Tk);
    begin(sink_sum_, "sinks", targets_.sinks, p_.H, p_.q_rows);
    for (Index b = 0; b < p_.B; ++b) {
      for (Index h = 0; h < p_.H; ++h) walk_head(b, h);
    }
  }

 private:
  static constexpr double kEps = std::numeric_limits<T>::epsilon();
  static constexpr double kSmallest = 1.2 * std::numeric_limits<T>::min();
  static constexpr double kTiny = std::numeric_limits<T>::denorm_min();

  static double sum_error(double n) { return BoundSum<T>::sum_error(n); }

  // The numbers of the pair of the current row with one key, and by how much they may differ.
  struct Key {
    double w = 0, w_change = 0;
    double ds = 0, ds_change = 0;  // ds is an absolute value
    double d_product = 0, d_product_change = 0;
    double z = 0;
  };

  template <class AnyArena>
  void take(AnyArena& arena) {
    x_ = reference::take_prepared<T>(p_, arena);
    x_.products =
        rounded_ == Rounded::kInProductsOfBFloat16 ? core::Products::kDot2 : core::Products::kPlain;
    row_ = GradientRow<T>::take(arena, p_.Tk, p_.E);
  }

  void begin(BoundSum<T>& sum, const char* name, const core::GradientTarget& target, Index places,
             Index terms) {
    sum.begin(p_, to_.bounds_[name], target, places, terms);
  }

  void walk_head(Index b, Index h) {
    const Sequence s = p_.sequence(b);
    scores_.set_head(x_, b, h);
    if (p_.v.given()) v_.set(x_.value_of(p_, b, h), s.Tk, p_.E);
    keys_.resize(static_cast<std::size_t>(s.Tk));
    for (Index i = 0; i < s.Tq; ++i) walk_row({b, h, i, p_.diagonal_offset(b, s)}, s);
    scores_.end_head(b, h);
  }

  void walk_row(const QueryAt& at, const Sequence& s) {
    const bool live = reference::weight_gradients(p_, x_, from_, at, 0, s.Tk, T(1), row_);
    set_factor(at, s);
    const T delta = reference::row_delta(p_, x_, from_, at, live, row_);
    if (from_.dout.given()) g_.set(row_.g, 1, p_.E);
    worst_score_ = 0;
    for (Index j = 0; j < s.Tk; ++j) {
      if (row_.scores.live[j]) worst_score_ = std::max(worst_score_, score_change(at, j));
    }
    for (Index j = 0; j < s.Tk; ++j) {
      if (row_.scores.live[j]) set_weight(at, j);
    }
    const double delta_change = change_of_delta(at, s, live);
    for (Index j = 0; j < s.Tk; ++j) {
      if (!row_.scores.live[j]) continue;
      set_scores(at, j, static_cast<double>(delta), delta_change);
      add_pair(at, s, j);
    }
    if (sink_sum_.given()) add_sink(at, live, std::fabs(static_cast<double>(delta)), delta_change);
  }

  // Applies the factor of a row with a large lse to its weights (core/weight_factor.h), and bounds
  // how much the factor may differ.
  void set_factor(const QueryAt& at, const Sequence& s) {
    const T lse = reference::element<T>(p_, from_.lse, at.b, at.h, s.q0 + at.i, 0);
    lse_ = static_cast<double>(lse);
    factor_change_ = 0;
    factor_ = 1;
    if (!core::has_large_lse(lse)) return;
    double sum = 0;
    if (p_.sinks.given()) {
      sum += static_cast<double>(std::exp(reference::parameter<T>(p_.sinks, at.h, 0, 0) - lse));
    }
    for (Index j = 0; j < s.Tk; ++j) sum += static_cast<double>(row_.w[j]);
    factor_ = static_cast<double>(reference::row_factor(p_, from_, at, row_));
    for (Index j = 0; j < s.Tk; ++j) row_.w[j] *= static_cast<T>(factor_);
    factor_change_ = 28 * kEps;
    const double apart = std::fabs(sum - 1);
    const double most = kEps * (std::fabs(lse_) + static_cast<double>(core::kLargeLse));
    if (apart > 0.9 * most && apart < 1.1 * most) factor_change_ += apart;
  }

  void add_sink(const QueryAt& at, bool live, double delta, double delta_change) {
    const auto sink = static_cast<double>(reference::parameter<T>(p_.sinks, at.h, 0, 0));
    if (live && !std::isfinite(sink)) return;
    const double w = live ? std::exp(std::min(0.0, sink - lse_)) * factor_ : 1;
    const double change = live ? weight_change(w, sink - lse_, 0) : 0;
    *sink_sum_.at(p_, at.b, at.h, 0, 0) += sink_sum_.term(
        w * delta, change * delta + (w + change) * (delta_change + 2 * kEps * delta));
  }

  Key& key(Index j) { return keys_[static_cast<std::size_t>(j)]; }

  double score_change(const QueryAt& at, Index j) const {
    if (equal_scores_) return 0;
    const double scale = std::fabs(p_.scale);
    double change = scores_.change(at.i, j) + 4 * kEps * (p_.softcap + size_of_score(j));
    if (p_.alibi.given()) {
      const auto slope = static_cast<double>(reference::element<T>(p_, p_.alibi, at.b, at.h, 0, 0));
      change += 4 * kEps * std::fabs(slope * static_cast<double>(at.i + at.o - j));
    }
    return change + scale * 8 * kTiny;
  }
  double size_of_score(Index j) const { return std::fabs(static_cast<double>(row_.scores.s[j])); }

  // The bound of the difference of a weight w = exp(log) whose score differs by up to `score`.
  double weight_change(double w, double log, double score) {
    double r = (8 + 2 * std::fabs(log)) * kEps + score + factor_change_;
    if (!equal_scores_) r += (72 + 2 * std::fabs(lse_)) * kEps + 2 * worst_score_;
    // e^r - 1 is below 1.001 r for small r, the usual case.
    const double growth = r < 1e-3 ? 1.001 * r : std::expm1(r);
    const double change = r < 40 ? std::min(1.0, w * growth) : 1;
    if (change > w && change > 1e-3) to_.ill_conditioned_ = true;
    const double least = std::exp(double{core::kLeastExponent<T>});
    return change + (w <= 2 * least ? 2 * least : kSmallest);
  }

  void set_weight(const QueryAt& at, Index j) {
    Key& x = key(j);
    x.w = static_cast<double>(row_.w[j]);
    const double log = static_cast<double>(row_.scores.s[j]) - lse_;
    x.w_change = weight_change(x.w, log, score_change(at, j));
    x.z = row_.kept[j] ? keep_factor_ : 0;
  }

  double change_of_delta(const QueryAt& at, const Sequence& s, bool live) const {
    double change = kTiny * static_cast<double>(p_.E + s.Tk + 2);
    if (live && from_.dout.given()) {
      double size = 0;
      double g = 0;
      for (Index c = 0; c < p_.E; ++c) {
        const double one = g_.row(0)[c];
        const double out = std::fabs(
            static_cast<double>(reference::element<T>(p_, from_.out, at.b, at.h, s.q0 + at.i, c)));
        size += one * out;
        g += one * (equal_scores_ ? 0 : change_of_out(out, s.Tk));
      }
      change += sum_error(static_cast<double>(p_.E)) * size + g;
    }
    double size = 0;
    for (Index j = 0; j < s.Tk; ++j) {
      if (!row_.scores.live[j]) continue;
      const double dweights = std::fabs(static_cast<double>(row_.dweights[j]));
      const Key& x = keys_[static_cast<std::size_t>(j)];
      size += x.w * dweights;
      change += x.w_change * dweights;
    }
    change += sum_error(static_cast<double>(s.Tk)) * size;
    if (from_.dlse.given()) {
      change += 4 * kEps *
                std::fabs(static_cast<double>(
                    reference::element<T>(p_, from_.dlse, at.b, at.h, s.q0 + at.i, 0)));
    }
    return change;
  }

  double change_of_out(double out, Index Tk) const {
    double largest = 0;
    for (double x : v_.sizes) {
      if (std::isfinite(x)) largest = std::max(largest, x);
    }
    const double keys = std::min<double>(static_cast<double>(Tk), 512);
    double change = largest * keep_factor_ *
                    (kEps * (32 + 4 * std::sqrt(keys)) +
                     std::min(2.0, std::expm1(std::min(2 * worst_score_, 2.0))));
    change += (keys + 8) * kTiny * keep_factor_;
    if (p_.dtype == DType::kFloat16) change += std::ldexp(out, -10) + std::ldexp(1, -24);
    if (p_.dtype == DType::kBFloat16) change += std::ldexp(out, -7);
    return change;
  }

  void set_scores(const QueryAt& at, Index j, double delta, double delta_change) {
    Key& x = key(j);
    const auto dw = static_cast<double>(row_.dw[j]);
    const double dweights = std::fabs(static_cast<double>(row_.dweights[j]));
    double dw_change = 8 * kEps * dweights;
    if (from_.dout.given()) {
      dw_change += x.z * (sum_error(static_cast<double>(p_.E)) * g_.norm_of(0) * v_.norm_of(j) +
                          static_cast<double>(p_.E + 4) * kTiny);
    }
    x.ds = std::fabs(static_cast<double>(row_.ds[j] = row_.w[j] * static_cast<T>(dw - delta)));
    x.ds_change = x.w_change * std::fabs(dw - delta) +
                  (x.w + x.w_change) * (dw_change + delta_change) +
                  4 * kEps * x.w * (std::fabs(dw) + std::fabs(delta)) + 4 * kTiny;
    const double slope = std::fabs(static_cast<double>(row_.scores.slope[j]));
    double slope_change = 4 * kEps * slope;
    if (p_.softcap > 0) {
      slope_change +=
          std::fabs(p_.scale) * (6 * kEps + 0.77 * scores_.change(at.i, j) / p_.softcap);
    }
    x.d_product = static_cast<double>(row_.ds[j]) * static_cast<double>(row_.scores.slope[j]);
    x.d_product_change = x.ds_change * slope + (x.ds + x.ds_change) * slope_change + 4 * kTiny;
  }

  // The bound of the difference that rounding a factor of a product makes: in products of BF16 both
  // paths round it, in tiles one path does, and else none. The factor is `size` + `change` at most.
  double rounding(double size, double change) const {
    if (rounded_ == Rounded::kNot) return 0;
    const double share = rounded_ == Rounded::kInProductsOfBFloat16 ? 0x1p-7
                         : p_.dtype == DType::kFloat16              ? 0x1p-11
                                                                    : 0x1p-8;
    return share * (size + change) + kSmallest;
  }

  void add_pair(const QueryAt& at, const Sequence& s, Index j) {
    const Key& x = key(j);
    const Index g = p_.key_head(at.h);
    scores_.add_pair(at.b, at.h, at.i, j, x.d_product,
                     x.d_product_change + rounding(std::fabs(x.d_product), x.d_product_change));
    if (from_.dout.given() && x.z != 0) {
      const double change = x.w_change * x.z + rounding(x.w * x.z, x.w_change * x.z);
      v_sum_.add_row(p_, at.b, g, s.k0 + j, v_sum_.term(x.w * x.z, change), g_.row(0), p_.E);
    }
    if (bias_sum_.given()) {
      *bias_sum_.at(p_, at.b, at.h, at.i, j) += bias_sum_.term(x.ds, x.ds_change);
    }
    if (alibi_sum_.given()) {
      const double distance = std::fabs(static_cast<double>(at.i + at.o - j));
      *alibi_sum_.at(p_, at.b, at.h, 0, 0) +=
          alibi_sum_.term(x.ds * distance, x.ds_change * distance);
    }
  }

  GradientBounds& to_;
  bool equal_scores_;
  Rounded rounded_;
  Gradients shapes_;
  core::ResolvedProblem p_;
  core::GradientSources from_;
  core::GradientResults targets_;
  ScoreBounds<T> scores_;
  BoundSum<T> v_sum_, bias_sum_, alibi_sum_, sink_sum_;
  Prepared<T> x_;
  GradientRow<T> row_;
  Rows v_, g_;  // v of the current head, dout of the current row
  std::vector<Key> keys_;
  double lse_ = 0;
  double factor_ = 1;
  double factor_change_ = 0;
  double worst_score_ = 0;
  double keep_factor_ = 1;  // of weights that dropout keeps
};

GradientBounds::GradientBounds(const BackwardCall& call, const Saved& saved, Same same,
                               Rounded rounded)
    : write_(call.write) {
  if (accumulator_of(call.inputs.q.dtype()) == DType::kFloat64) {
    Pass<double>(*this, call, saved, same, Rounded::kNot).run();
  } else {
    Pass<float>(*this, call, saved, same, rounded).run();
  }
}

std::string GradientBounds::check(const Gradients& got, const Gradients& want,
                                  bool overflows) const {
  for (const auto& [name, array] : want.arrays()) {
    const View view = array.view();
    const double rounding = view.dtype() == DType::kFloat16    ? std::ldexp(1, -10)
                            : view.dtype() == DType::kBFloat16 ? std::ldexp(1, -7)
                                                               : 0;
    const double step = view.dtype() == DType::kFloat16 ? std::ldexp(1, -24) : 0;
    const double eps = view.dtype() == DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                                       : std::numeric_limits<float>::epsilon();
    const std::vector<double> x = values_of(got.arrays().at(name).view());
    const std::vector<double> y = values_of(view);
    const std::vector<double>& bounds = bounds_.at(name);
    const std::vector<double>& before = want.before(name);
    for (std::size_t n = 0; n < y.size(); ++n) {
      double bound = bounds[n];
      if (bound != 0) bound += rounding * std::fabs(y[n]) + step;
      if (bound != 0 && write_ == Write::kAccumulate) {
        bound += 2 * eps * (std::fabs(y[n]) + std::fabs(before[n]));
      }
      const bool none_finite = !std::isfinite(x[n]) && !std::isfinite(y[n]);
      const bool agree = overflows && none_finite ? true
                         : std::isnan(y[n]) || std::isnan(x[n])
                             ? std::isnan(x[n]) && std::isnan(y[n])
                             : x[n] == y[n] || std::fabs(x[n] - y[n]) <= bound;
      if (agree) continue;
      return "d" + name + " at " +
             to_string(detail::index_of(view.shape(), static_cast<Index>(n))) + " of " +
             to_string(view.shape()) + ": got " + detail::shown(x[n]) + ", want " +
             detail::shown(y[n]) + ", bound " + detail::shown(bound);
    }
  }
  return "";
}

}  // namespace qkv::test
