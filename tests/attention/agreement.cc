// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "attention/validate/resolve.h"
#include "core/order.h"
#include "core/problem.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

using Values = std::vector<double>;

double largest_finite(const Values& values) {
  double most = 0;
  for (double x : values) {
    if (std::isfinite(x)) most = std::max(most, std::fabs(x));
  }
  return most;
}

// The largest sum that a row has of term(value) over its finite values.
template <class Term>
double largest_row(const ConstView& x, const Term& term) {
  const Values values = values_of(x);
  const auto width = static_cast<std::size_t>(x.size(-1));
  double most = 0;
  for (std::size_t from = 0; from + width <= values.size(); from += width) {
    double sum = 0;
    for (std::size_t c = from; c < from + width; ++c) {
      if (std::isfinite(values[c])) sum += term(values[c]);
    }
    most = std::max(most, sum);
  }
  return most;
}

double largest_norm(const ConstView& x) {
  return std::sqrt(largest_row(x, [](double value) { return value * value; }));
}

double largest_sum(const ConstView& x) {
  return largest_row(x, [](double value) { return std::fabs(value); });
}

class Judge {
 public:
  Judge(const RandomCall& call, std::string_view path, const Results& got, const Results& want,
        const Looseness& loose)
      : call_(call), got_(got), want_(want), loose_(loose) {
    const bool wide = call.sums() == DType::kFloat64;
    eps_ = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    smallest_ =
        1.2 * (wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min());
    fuses_ = !loose.products && fuses(path);
    const double scale =
        std::fabs(call.options().scale.value_or(call.has("scaled_dot") ? 1 / root(call.Dq) : 1));
    raw_ = scale * error_of(call.score());
    largest_ = scale * size_of(call.score());
    if (call.options().softcap > 0) largest_ = std::min(largest_, call.options().softcap);
    if (raw_ > 0) raw_ += static_cast<double>(call.Dq + call.Dk + call.U) * smallest_ * eps_;
    capped_ = raw_ + (raw_ > 0 ? 4 * eps_ * call.options().softcap : 0);
    score_ = capped_ + (raw_ > 0 ? error_of_additions() : 0);
    if (loose.products) score_ += 4 * eps_ * size_of_sums();
    weight_ = growth(2 * score_);
    dropped_ = 1 / (1 - call.options().dropout.p);
  }

  std::string run() {
    for (const auto& [name, wanted] : call_.wanted()) {
      if (name == "top_keys" || !compares(name)) continue;
      if (name == "top_weights") check_top_keys();
      const Values got = values_of(got_.view(name));
      const Values want = values_of(want_.view(name));
      for (std::size_t n = 0; n < want.size() && message_.empty(); ++n) {
        if (!allowed(name, got[n], want[n])) tell(name, n, got[n], want[n]);
      }
    }
    return message_;
  }

 private:
  static double root(Index n) { return std::sqrt(static_cast<double>(n)); }
  // Returns e^r - 1 (r up to 80), or for small r its bound 1.001 r.
  static double growth(double r) { return r < 1e-3 ? 1.001 * r : std::expm1(std::min(r, 80.0)); }

  // The error of all steps after the soft-cap: the number of roundings, times eps and the magnitude
  // of the sums, whose terms may cancel.
  double error_of_additions() const {
    const Options& options = call_.options();
    const double steps = (call_.has("mods") ? 2 : 0) + (options.bias.given() ? 1 : 0) +
                         (options.alibi.given() ? 1 : 0);
    return steps * eps_ * size_of_sums();
  }
  // The largest |score| plus the largest magnitudes of all that is added to scores.
  double size_of_sums() const {
    const Options& options = call_.options();
    double size = largest_;
    if (call_.has("mods")) {  // the most that the functions of random_options.cc add
      size += 0.7 + 0.05 * static_cast<double>(std::max(call_.Tq, call_.Tk)) +
              0.1 * static_cast<double>(call_.B + call_.H);
    }
    if (options.bias.given()) size += largest_finite(values_of(options.bias));
    if (options.alibi.given()) {
      size += largest_finite(values_of(options.alibi)) * largest_distance();
    }
    return size;
  }
  // The largest |i + o - j| that causal masks and windows leave.
  double largest_distance() const {
    core::ResolvedProblem p;
    attn::resolve("bounds", {}, call_.inputs(), call_.options(), p);
    Index largest = 0;
    for (Index b = 0; b < p.B; ++b) {
      const core::Sequence s = p.sequence(b);
      const Index o = p.diagonal_offset(b, s);
      Index least = o - std::max<Index>(0, s.Tk - 1);
      Index most = o + std::max<Index>(0, s.Tq - 1);
      for (const Mask& mask : call_.options().masks) {
        if (std::holds_alternative<Causal>(mask)) least = std::max<Index>(least, 0);
        const auto* window = std::get_if<Window>(&mask);
        if (window != nullptr && window->left >= 0) most = std::min(most, window->left);
        if (window != nullptr && window->right >= 0) least = std::max(least, -window->right);
      }
      if (least <= most) largest = std::max({largest, std::abs(least), std::abs(most)});
    }
    return static_cast<double>(largest);
  }
  // How far two paths may differ in a sum of n products of vectors with norms up to x and y.
  double products(Index n, double x, double y) const {
    return fuses_ ? 0 : static_cast<double>(n + 2) * eps_ * x * y;
  }
  // The largest |score| before scale, rounded or not.
  double size_of(ScoreKind score) const {
    switch (score) {
      case ScoreKind::kDot:
        return largest_norm(call_.inputs().q) * largest_norm(call_.inputs().k);
      case ScoreKind::kBilinear: {
        // |W| is at most the root of the sum of its rows' squares.
        const ConstView w = std::get<Bilinear>(call_.options().score).w;
        return largest_norm(call_.inputs().q) * largest_norm(w) * root(call_.Dq) *
               largest_norm(call_.inputs().k);
      }
      case ScoreKind::kAdditive:
        return largest_sum(std::get<Additive>(call_.options().score).v);
      case ScoreKind::kCosine:
        break;
    }
    return 1.01 * 1.01;  // norms are 1 up to rounding, and equal on all paths
  }
  double error_of(ScoreKind score) const {
    switch (score) {
      case ScoreKind::kDot:
      case ScoreKind::kCosine:
        return products(call_.Dq, size_of(score), 1);
      case ScoreKind::kBilinear:
        return products(call_.Dq + call_.Dk + 2, size_of(score), 1);
      case ScoreKind::kAdditive:
        break;
    }
    return additive_error();
  }
  double additive_error() const {
    const auto& score = std::get<Additive>(call_.options().score);
    double projected = products(call_.Dq, largest_norm(call_.inputs().q), largest_norm(score.wq)) +
                       products(call_.Dk, largest_norm(call_.inputs().k), largest_norm(score.wk));
    if (!fuses_ && score.b.given()) projected += eps_ * largest_finite(values_of(score.b));
    const double each = tanh_error(call_.U) * eps_ + std::min(projected, 2.0);
    return size_of(ScoreKind::kAdditive) * each;
  }

  bool compares(const std::string& name) const {
    return loose_.results.empty() || loose_.results.contains(name);
  }

  bool allowed(const std::string& name, double got, double want) {
    if (name == "out" && call_.has("infinity in v") && !std::isfinite(want)) {
      return std::isnan(got) || got == want || (std::isnan(want) && std::isinf(got));
    }
    // A sum of subnormal weights may be 0 on one path, which then does not multiply it by the
    // value.
    const bool special_value = call_.has("infinity in v") || call_.has("NaN in v");
    if (name == "value_sums" && special_value && (got == 0 || want == 0)) return true;
    if (std::isnan(want)) return std::isnan(got);
    if (!std::isfinite(want) || !std::isfinite(got)) return got == want;
    // The out of an empty row is exactly 0.
    const bool may_round = call_.has("numbers denormal") || (call_.has("dropout") && raw_ > 0) ||
                           loose_.products;  // such kernels keep weights below 2^-72
    if (want == 0 && name == "out" && !may_round) return got == 0;
    return std::fabs(got - want) <= bound(name, want);
  }

  double bound(const std::string& name, double want) {
    const double size = std::fabs(want);
    if (name == "raw_scores") return raw_;
    if (name == "capped_scores") return capped_;
    if (name == "masked_scores" || name == "row_max") return score_;
    if (name == "lse") return (72 + 2 * size) * eps_ + 2 * score_;
    if (name == "out") return out_bound(size);
    if (name == "entropy") return entropy_bound(size);
    if (name == "column_sums") {
      return sum_bound(size, std::max(call_.Tq, call_.column_rows().element_count()), 96);
    }
    // sum_bound() is for the sum divided by the largest norm of a row of v. The product of sum and
    // norm may be subnormal.
    if (name == "value_sums") {
      const double longest = std::max(largest_norm(call_.inputs().v), smallest_);
      const Index queries = std::max(call_.Tq, call_.column_rows().element_count());
      return longest * sum_bound(size / longest, queries, 104) + smallest_ * eps_;
    }
    // A cell is a mean over queries; it is summed over the keys of each chunk, then over chunks.
    if (name == "pooled") return sum_bound(size, call_.Tk, 96 + 512);
    const double log = size > 0 ? std::fabs(std::log(size)) : 0;
    return std::min(
        dropped_, size * ((48 + 2 * log) * eps_ + weight_) + smallest_ * (1 + weight_) * dropped_);
  }

  // The bound of a sum `size` of `weights` weights, whose roundings amount to `additions` eps.
  double sum_bound(double size, Index weights, double additions) const {
    const auto most = static_cast<double>(std::max<Index>(1, weights));
    const double share = std::fabs(std::log(std::max(size, smallest_) / most));
    return std::min(
        most, size * ((additions + 2 * share) * eps_ + weight_) + most * smallest_ * (1 + weight_));
  }
  // The bound of -sum w ln w: w of each term differs by as much as weights, and ln w by twice as
  // much as scores. Terms of the smallest weights may be missing.
  double entropy_bound(double size) const {
    const auto Tk = static_cast<double>(std::max<Index>(1, call_.Tk));
    const double each = (300 * eps_ + weight_) * size + 2 * score_ + 64 * eps_;
    return std::min(std::log(Tk), each) + 800 * Tk * smallest_ * (1 + weight_) + 64 * eps_;
  }

  double out_bound(double size) {
    if (largest_value_ < 0) largest_value_ = largest_finite(values_of(call_.inputs().v));
    const auto keys = static_cast<double>(std::min<Index>(call_.Tk, 512));
    double bound =
        largest_value_ * dropped_ * (eps_ * (32 + 4 * std::sqrt(keys)) + std::min(weight_, 2.0));
    bound += largest_value_ * dropped_ * loose_.weights;
    // Subnormal products are rounded to multiples of the smallest number.
    bound += (keys + 8) * smallest_ * eps_ * dropped_;
    if (call_.dtype() == DType::kFloat16) bound += std::ldexp(size, -10) + std::ldexp(1, -24);
    if (call_.dtype() == DType::kBFloat16) bound += std::ldexp(size, -7) + std::ldexp(1, -132);
    return bound;
  }

  // Checks that each key is the wanted one or ties with it within the bound; an unlisted key counts
  // as having the smallest listed weight. Keys are distinct, in descending order of their weights.
  void check_top_keys() {
    const Values keys = values_of(got_.view("top_keys"));
    const Values want = values_of(want_.view("top_keys"));
    const Values own = values_of(got_.view("top_weights"));
    const Values weights = values_of(want_.view("top_weights"));
    const auto count = static_cast<std::size_t>(call_.top());
    for (std::size_t row = 0; row < keys.size() && message_.empty(); row += count) {
      std::set<double> seen;
      for (std::size_t r = row; r < row + count && message_.empty(); ++r) {
        const bool repeated = keys[r] >= 0 && !seen.insert(keys[r]).second;
        const bool falls = r == row || !(own[r] > own[r - 1]);
        const bool ascends =
            r == row || own[r] != own[r - 1] || keys[r] < 0 || keys[r] > keys[r - 1];
        const bool known =
            (keys[r] < 0) == (want[r] < 0) && keys[r] < static_cast<double>(call_.Tk);
        if (known && falls && ascends && !repeated &&
            (keys[r] == want[r] || ties(keys[r], r, row, count, want, weights))) {
          continue;
        }
        tell("top_keys", r, keys[r], want[r]);
      }
    }
  }

  bool ties(double key, std::size_t r, std::size_t row, std::size_t count, const Values& want,
            const Values& weights) {
    for (std::size_t n = row; n < row + count; ++n) {
      if (want[n] == key) return close(weights[n], weights[r]);
    }
    return close(weights[row + count - 1], weights[r]);
  }
  bool close(double a, double b) { return std::fabs(a - b) <= 2 * bound("top_weights", b); }

  void tell(const std::string& name, std::size_t n, double got, double want) {
    const ConstView view = got_.view(name);
    message_ = name + " at " + to_string(detail::index_of(view.shape(), static_cast<Index>(n))) +
               " of " + to_string(view.shape()) + ": got " + detail::shown(got) + ", want " +
               detail::shown(want) + ", bound " +
               detail::shown(name == "top_keys" ? 0 : bound(name, want));
  }

  const RandomCall& call_;
  const Results &got_, &want_;
  const Looseness& loose_;
  bool fuses_ = true;
  double eps_ = 0;
  double smallest_ = 0;        // smaller numbers may be rounded to 0
  double largest_ = 0;         // the bound of |score| after the soft-cap
  double raw_ = 0;             // the bound of the paths' difference in raw scores
  double capped_ = 0;          // the bound of their difference in capped scores
  double score_ = 0;           // the bound of their difference in masked scores
  double weight_ = 0;          // the relative bound for weights: e^(2 score) - 1
  double dropped_ = 1;         // the dropout factor 1 / (1 - p)
  double largest_value_ = -1;  // the largest |v|; -1: not yet computed
  std::string message_;
};

}  // namespace

double tanh_error(Index U) {
  const auto units = static_cast<double>(std::min<Index>(U, core::kUnitChunk));
  return 8 + 4 * std::sqrt(units) + static_cast<double>(U / core::kUnitChunk);
}

std::string Agreement::check(const RandomCall& call, std::string_view path, const Results& got,
                             const Results& want, const Looseness& loose) {
  return Judge(call, path, got, want, loose).run();
}

}  // namespace qkv::test
