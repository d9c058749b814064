// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

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

// The longest row of finite values.
double largest_norm(const ConstView& x) {
  const Values values = values_of(x);
  const auto width = static_cast<std::size_t>(x.size(-1));
  double most = 0;
  for (std::size_t from = 0; from + width <= values.size(); from += width) {
    double sum = 0;
    for (std::size_t c = from; c < from + width; ++c) {
      if (std::isfinite(values[c])) sum += values[c] * values[c];
    }
    most = std::max(most, sum);
  }
  return std::sqrt(most);
}

class Judge {
 public:
  Judge(const RandomCall& call, std::string_view path, const Results& got, const Results& want)
      : call_(call), got_(got), want_(want) {
    const bool wide = call.sums() == DType::kFloat64;
    eps_ = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    smallest_ =
        1.2 * (wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min());
    fuses_ = fuses(path);
    const Options& o = call.options();
    const double scale =
        o.scale.value_or(call.has("dot") ? 1 : 1 / std::sqrt(static_cast<double>(call.D)));
    if (!fuses_) {
      raw_ = static_cast<double>(call.D + 2) * eps_ * std::fabs(scale) *
                 largest_norm(call.inputs().q) * largest_norm(call.inputs().k) +
             static_cast<double>(call.D + 2) * smallest_ * eps_;
    }
    capped_ = raw_ + (o.softcap > 0 && !fuses_ ? 4 * eps_ * o.softcap : 0);
    score_ = capped_;
    dropped_ = 1 / (1 - o.dropout.p);
  }

  std::string run() {
    for (const auto& [name, wanted] : call_.wanted()) {
      if (name == "top_keys") continue;
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
  bool allowed(const std::string& name, double got, double want) {
    if (name == "out" && call_.has("infinity in v") && !std::isfinite(want)) {
      return std::isnan(got) || got == want || (std::isnan(want) && std::isinf(got));
    }
    if (std::isnan(want)) return std::isnan(got);
    if (!std::isfinite(want) || !std::isfinite(got)) return got == want;
    // Masked rows are zero, not nearly so.
    if (want == 0 && name == "out" && !call_.has("numbers denormal")) return got == 0;
    return std::fabs(got - want) <= bound(name, want);
  }

  double bound(const std::string& name, double want) {
    const double size = std::fabs(want);
    if (name == "raw_scores") return raw_;
    if (name == "capped_scores") return capped_;
    if (name == "masked_scores" || name == "row_max") {
      return score_ == 0 ? 0 : score_ + 4 * eps_ * size;
    }
    if (name == "lse") return (72 + 2 * size) * eps_ + 2 * score_;
    const double score = 2 * std::min(score_, 1.0);
    if (name == "out") return out_bound(size);
    const double log = size > 0 ? std::fabs(std::log(size)) : 0;
    if (name == "column_sums") {
      const auto Tq = static_cast<double>(std::max<Index>(1, call_.Tq));
      const double share = std::fabs(std::log(std::max(size, smallest_) / Tq));
      return size * ((96 + 2 * share) * eps_ + score) + Tq * smallest_;
    }
    return size * ((48 + 2 * log) * eps_ + score) + smallest_ * dropped_;
  }

  double out_bound(double size) {
    if (largest_value_ < 0) largest_value_ = largest_finite(values_of(call_.inputs().v));
    const auto keys = static_cast<double>(std::min<Index>(call_.Tk, 512));
    double bound =
        largest_value_ * dropped_ * (eps_ * (32 + 4 * std::sqrt(keys)) + 2 * std::min(score_, 1.0));
    // Denormal products are rounded to multiples of the smallest number.
    bound += (keys + 8) * smallest_ * eps_ * dropped_;
    if (call_.dtype() == DType::kFloat16) bound += std::ldexp(size, -10) + std::ldexp(1, -24);
    if (call_.dtype() == DType::kBFloat16) bound += std::ldexp(size, -7);
    return bound;
  }

  // Keys agree, or their weights tie within the bound: with a neighbour in the list, or at its end
  // with the first one left out.
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
        const bool lower = r == row || own[r] != own[r - 1] || keys[r] < 0 || keys[r] > keys[r - 1];
        const bool known =
            (keys[r] < 0) == (want[r] < 0) && keys[r] < static_cast<double>(call_.Tk);
        if (known && falls && lower && !repeated &&
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
  bool fuses_ = true;
  double eps_ = 0;
  double smallest_ = 0;  // what may be rounded to 0
  double raw_ = 0;       // bounds of scores
  double capped_ = 0;
  double score_ = 0;
  double dropped_ = 1;
  double largest_value_ = -1;
  std::string message_;
};

}  // namespace

std::string Agreement::check(const RandomCall& call, std::string_view path, const Results& got,
                             const Results& want) {
  return Judge(call, path, got, want).run();
}

}  // namespace qkv::test
