// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_SCORE_BOUNDS_H_
#define QKV_TESTS_ATTENTION_SCORE_BOUNDS_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/results.h"
#include "reference/prepared.h"
#include "tests/attention/agreement.h"
#include "tests/attention/scores.h"

// Bounds of the difference between two paths in scores and in what depends on them: the gradients
// of q, k and the score's parameters. gradient_agreement.h derives the bounds.
namespace qkv::test {

using core::GradientTarget;
using core::Problem;
using core::Sequence;

// The numbers that are bit-identical in the backward passes of two paths. kScores: scores, and also
// out and lse if both passes read those that one path saved. kProjections: of additive scores only
// the projections, because tanh differs between paths. kNothing: none, as where one path does not
// fuse multiply-adds.
enum class Same { kScores, kProjections, kNothing };

inline double norm(const double* x, Index n) {
  double sum = 0;
  for (Index c = 0; c < n; ++c) sum += x[c] * x[c];
  return std::sqrt(sum);
}

// Rows of absolute values, and the rows' norms.
struct Rows {
  std::vector<double> sizes, norms;
  Index width = 0;

  template <class T>
  void set(const T* from, Index count, Index columns) {
    width = columns;
    sizes.resize(static_cast<std::size_t>(count * width));
    for (std::size_t n = 0; n < sizes.size(); ++n)
      sizes[n] = std::fabs(static_cast<double>(from[n]));
    norms.clear();
    for (Index n = 0; n < count; ++n) norms.push_back(norm(row(n), width));
  }
  const double* row(Index n) const { return sizes.data() + n * width; }
  double norm_of(Index n) const { return norms[static_cast<std::size_t>(n)]; }
};

// The bounds of a gradient's elements, and the relative error of its sums.
template <class T>
struct BoundSum {
  static constexpr double kEps = std::numeric_limits<T>::epsilon();
  static constexpr double kTiny = std::numeric_limits<T>::denorm_min();

  double* bounds = nullptr;
  const GradientTarget* target = nullptr;
  double error = 0;
  double tiny = kTiny;  // the most that a term loses by underflow

  bool given() const { return bounds != nullptr; }

  // The error of a sum of n terms whose sizes add up to 1.
  static double sum_error(double n) { return (8 + 4 * std::sqrt(n)) * kEps; }

  // Begins the bounds of a gradient, in `to`. Before broadcast axes are summed, the gradient has
  // `places` elements per batch entry (packed: in all sequences together), each a sum of `terms`
  // terms. An element of a smaller buffer sums several of them.
  void begin(const Problem& p, std::vector<double>& to, const GradientTarget& gradient,
             Index places, Index terms) {
    if (!gradient.given()) return;
    to.assign(static_cast<std::size_t>(gradient.buffer.element_count()), 0);
    if (to.empty()) return;
    const double shared =
        static_cast<double>(places * (p.packed() ? 1 : p.B)) / static_cast<double>(to.size());
    bounds = to.data();
    target = &gradient;
    error = sum_error(shared * static_cast<double>(terms));
  }

  double* at(const Problem& p, Index b, Index h, Index row, Index col) const {
    const Index entry = core::batch_offset(target->own, p.batch, b);
    return bounds + core::offset_of(target->own, entry, h, row, col);
  }
  // The bound of a term of this size that differs by `change`, with its part of the sum's error.
  double term(double size, double change) const {
    return change + error * (size + change) + 2 * kTiny;
  }
  // Adds `term` times each channel of a row of factors.
  void add_row(const Problem& p, Index b, Index head, Index row, double term, const double* factors,
               Index width) const {
    if (!given()) return;
    double* to = at(p, b, head, row, 0);
    const Index stride = target->own.col_stride;
    for (Index c = 0; c < width; ++c) to[c * stride] += term * factors[c] + tiny;
  }
};

// Rows of numbers, each a sum over the pairs of one head, and by how much each may differ.
struct Spread {
  std::vector<double> value, change;
  Index width = 0;

  void reset(Index rows, Index columns) {
    width = columns;
    value.assign(static_cast<std::size_t>(rows * columns), 0);
    change = value;
  }
  void add(Index place, double x, double by) {
    value[static_cast<std::size_t>(place)] += x;
    change[static_cast<std::size_t>(place)] += by;
  }
  // The bound of an element of a sum whose relative error is `error`.
  double bound(Index place, double error) const {
    const auto n = static_cast<std::size_t>(place);
    return change[n] + error * (std::fabs(value[n]) + change[n]);
  }
};

template <class T>
class ScoreBounds {
 public:
  using Bounds = std::map<std::string, std::vector<double>>;

  ScoreBounds(const Problem& p, Same same) : p_(p), same_(same) {}

  // Sets the largest loss of a term of dq and dk by underflow.
  void set_tiny(double tiny) { q_.tiny = k_.tiny = tiny; }
  void begin(const core::GradientResults& to, Bounds& bounds) {
    const GradientTarget none;
    const bool bilinear = kind() == ScoreKind::kBilinear;
    const bool projects = kind() != ScoreKind::kDot;
    const bool cosine = kind() == ScoreKind::kCosine;
    const bool additive = kind() == ScoreKind::kAdditive;
    const Index queries = p_.Tq * p_.H / std::max<Index>(1, p_.G);  // of one key head
    q_.begin(p_, bounds["q"], to.q, p_.H * p_.q_rows * p_.Dq, projects ? 1 : p_.Tk);
    k_.begin(p_, bounds["k"], to.k, (additive ? p_.H : p_.G) * p_.k_rows * p_.Dk,
             additive || cosine ? 1 : queries);
    w_.begin(p_, bounds["w"], bilinear ? to.query.w : none, p_.H * p_.Dq * p_.Dk, p_.q_rows);
    wq_.begin(p_, bounds["wq"], additive ? to.query.w : none, p_.H * p_.U * p_.Dq, p_.q_rows);
    wk_.begin(p_, bounds["wk"], to.key.w, p_.H * p_.U * p_.Dk, p_.k_rows);
    b_.begin(p_, bounds["score_b"], to.query.b, p_.H * p_.U, p_.q_rows);
    v_.begin(p_, bounds["score_v"], to.score_v, p_.H * p_.U, p_.q_rows * p_.Tk);
  }

  void set_head(const reference::Prepared<T>& x, Index b, Index h);
  // The bound of a raw score's difference.
  double change(Index i, Index j) const;
  // Adds the pair (i, j). `d_product` is the gradient with respect to its unscaled score, `change`
  // bounds the difference of d_product between the paths.
  void add_pair(Index b, Index h, Index i, Index j, double d_product, double change);
  // Called after the last pair of a head.
  void end_head(Index b, Index h);

 private:
  static constexpr double kEps = BoundSum<T>::kEps;
  static constexpr double kTiny = BoundSum<T>::kTiny;
  // The x from which on 1 - tanh(x) is below 0.3 eps.
  static constexpr double kSaturated = sizeof(T) == 4 ? 9 : 19;

  ScoreKind kind() const { return kind_of(p_); }
  static double sum_error(Index n) { return BoundSum<T>::sum_error(static_cast<double>(n)); }
  // An infinity or NaN needs no bound: it reaches the result on either path.
  static double finite(double x) { return std::isfinite(x) ? x : 0; }

  void load_rows(const core::Operand& x, Index b, Index head, Index first, Index count, Index width,
                 Rows& to) {
    std::vector<T> all(static_cast<std::size_t>(count * width));
    for (Index n = 0; n < count; ++n) {
      reference::load_row(p_, x, b, head, first + n, width, all.data() + n * width);
    }
    to.set(all.data(), count, width);
  }
  void load_parameter(const core::Operand& x, Index h, Index rows, Index columns, Rows& to) const {
    std::vector<T> all(static_cast<std::size_t>(rows * columns));
    for (Index n = 0; n < rows * columns; ++n) {
      all[static_cast<std::size_t>(n)] = reference::parameter<T>(x, h, n / columns, n % columns);
    }
    to.set(all.data(), rows, columns);
  }

  // The bound of the difference of a projection sum_c w_c x_c, where w and x are the rows' norms.
  double projected(Index width, double w, double x) const {
    if (same_ != Same::kNothing) return 0;
    return finite(static_cast<double>(width + 2) * (kEps * w * x + kTiny));
  }
  void set_projections();
  // Bounds the change of a tanh whose argument changes by up to `change`. The bound is 0 where tanh
  // is saturated: the change, below 0.3 eps, is part of the error that each tanh is allowed.
  double moved(double argument, double change) const {
    return std::fabs(argument) - change > kSaturated ? 0 : change;
  }
  double changes_of_units(Index i, Index j) const;
  void add_cosines(Index i, Index j, double d_product, double change);
  void add_units(Index i, Index j, double d_product, double d_product_change);
  void end_bilinear(Index b, Index h);
  void end_cosine(Index b, Index h);
  void end_additive(Index b, Index h);

  const Problem& p_;
  Same same_;
  BoundSum<T> q_, k_, w_, wq_, wk_, b_, v_;
  // State of the current head.
  Sequence s_;
  const T *left_ = nullptr, *right_ = nullptr, *score_v_ = nullptr;
  Rows left_rows_, right_rows_, q_rows_, k_rows_, w_rows_, wk_rows_;
  double w_norm_ = 0;
  double size_of_v_ = 0;
  // Bounds of the differences of projections: [Tq,U] and [Tk,U]; bilinear: [Tq], and none.
  std::vector<double> left_change_, right_change_;
  std::vector<char> query_live_, key_live_;
  Spread dleft_, dright_, dscore_v_;
};

// ---- the pass over one head, from set_head() to end_head()

template <class T>
void ScoreBounds<T>::set_head(const reference::Prepared<T>& x, Index b, Index h) {
  s_ = p_.sequence(b);
  left_ = x.left_of(p_, b, h);
  right_ = x.right_of(p_, b, h);
  query_live_.assign(static_cast<std::size_t>(s_.Tq), 0);
  key_live_.assign(static_cast<std::size_t>(s_.Tk), 0);
  if (kind() != ScoreKind::kDot) load_rows(p_.q, b, h, s_.q0, s_.Tq, p_.Dq, q_rows_);
  if (kind() != ScoreKind::kAdditive) {
    left_rows_.set(left_, s_.Tq, p_.Dk);
    right_rows_.set(right_, s_.Tk, p_.Dk);
  }
  if (kind() == ScoreKind::kCosine) {
    load_rows(p_.k, b, p_.key_head(h), s_.k0, s_.Tk, p_.Dk, k_rows_);
    dleft_.reset(s_.Tq, p_.Dk);
    dright_.reset(s_.Tk, p_.Dk);
  }
  if (kind() == ScoreKind::kBilinear) {
    load_parameter(p_.query_maps.product.w, h, p_.Dq, p_.Dk, w_rows_);
    w_norm_ = norm(w_rows_.sizes.data(), p_.Dq * p_.Dk);
    left_change_.clear();
    for (Index i = 0; i < s_.Tq; ++i) {
      left_change_.push_back(projected(p_.Dq, w_norm_, q_rows_.norm_of(i)));
    }
    dleft_.reset(s_.Tq, p_.Dk);
  }
  if (kind() == ScoreKind::kAdditive) {
    load_rows(p_.k, b, p_.key_head(h), s_.k0, s_.Tk, p_.Dk, k_rows_);
    load_parameter(p_.query_maps.product.w, h, p_.U, p_.Dq, w_rows_);
    load_parameter(p_.key_maps.product.w, h, p_.U, p_.Dk, wk_rows_);
    score_v_ = x.score_v.of(0, h, 0);
    size_of_v_ = 0;
    for (Index u = 0; u < p_.U; ++u) {
      size_of_v_ += finite(std::fabs(static_cast<double>(score_v_[u])));
    }
    set_projections();
    dleft_.reset(s_.Tq, p_.U);
    dright_.reset(s_.Tk, p_.U);
    dscore_v_.reset(1, p_.U);
  }
}

template <class T>
void ScoreBounds<T>::set_projections() {
  left_change_.clear();
  right_change_.clear();
  for (Index i = 0; i < s_.Tq; ++i) {
    for (Index u = 0; u < p_.U; ++u) {
      const double sum = finite(std::fabs(static_cast<double>(left_[i * p_.U + u])));
      left_change_.push_back(projected(p_.Dq, w_rows_.norm_of(u), q_rows_.norm_of(i)) +
                             (same_ == Same::kNothing ? kEps * sum : 0));
    }
  }
  for (Index j = 0; j < s_.Tk; ++j) {
    for (Index u = 0; u < p_.U; ++u) {
      right_change_.push_back(projected(p_.Dk, wk_rows_.norm_of(u), k_rows_.norm_of(j)));
    }
  }
}

template <class T>
double ScoreBounds<T>::change(Index i, Index j) const {
  const double scale = std::fabs(p_.scale);
  if (kind() == ScoreKind::kAdditive) {
    return scale * (tanh_error(p_.U) * kEps * size_of_v_ + changes_of_units(i, j) +
                    static_cast<double>(p_.U) * kTiny);
  }
  if (same_ == Same::kScores) return 0;
  const double right = right_rows_.norm_of(j);
  double change = static_cast<double>(p_.Dk + 2) * (kEps * left_rows_.norm_of(i) * right + kTiny);
  if (kind() == ScoreKind::kBilinear) {
    change += left_change_[static_cast<std::size_t>(i)] * right;
  }
  return scale * finite(change);
}

template <class T>
double ScoreBounds<T>::changes_of_units(Index i, Index j) const {
  if (same_ != Same::kNothing) return 0;
  double change = 0;
  for (Index u = 0; u < p_.U; ++u) {
    const double by = left_change_[static_cast<std::size_t>(i * p_.U + u)] +
                      right_change_[static_cast<std::size_t>(j * p_.U + u)];
    const double x = static_cast<double>(left_[i * p_.U + u]) + right_[j * p_.U + u];
    change += finite(std::fabs(static_cast<double>(score_v_[u]))) * std::min(2.0, moved(x, by));
  }
  return change;
}

template <class T>
void ScoreBounds<T>::add_pair(Index b, Index h, Index i, Index j, double d_product, double change) {
  query_live_[static_cast<std::size_t>(i)] = key_live_[static_cast<std::size_t>(j)] = 1;
  if (kind() == ScoreKind::kAdditive) return add_units(i, j, d_product, change);
  const double size = std::fabs(d_product);
  if (kind() == ScoreKind::kCosine) return add_cosines(i, j, d_product, change);
  const Index g = p_.key_head(h);
  const double term = k_.term(size, change);
  k_.add_row(p_, b, g, s_.k0 + j, term, left_rows_.row(i), p_.Dk);
  if (kind() == ScoreKind::kDot) {
    q_.add_row(p_, b, h, s_.q0 + i, q_.term(size, change), right_rows_.row(j), p_.Dk);
    return;
  }
  if (k_.given() && left_change_[static_cast<std::size_t>(i)] > 0) {
    const std::vector<double> same(static_cast<std::size_t>(p_.Dk),
                                   left_change_[static_cast<std::size_t>(i)]);
    k_.add_row(p_, b, g, s_.k0 + j, size + change, same.data(), p_.Dk);
  }
  const double rounding = sum_error(s_.Tk) * size;
  for (Index x = 0; x < p_.Dk; ++x) {
    const auto right = static_cast<double>(right_[j * p_.Dk + x]);
    dleft_.add(i * p_.Dk + x, d_product * right, (change + rounding) * std::fabs(right) + kTiny);
  }
}

template <class T>
void ScoreBounds<T>::add_cosines(Index i, Index j, double d_product, double change) {
  const auto add = [&](Spread& to, Index row, const T* other, Index terms) {
    const double by = change + sum_error(terms) * std::fabs(d_product);
    for (Index c = 0; c < p_.Dk; ++c) {
      const auto x = static_cast<double>(other[c]);
      to.add(row * p_.Dk + c, d_product * x, by * std::fabs(x) + kTiny);
    }
  };
  add(dleft_, i, right_ + j * p_.Dk, s_.Tk);
  add(dright_, j, left_ + i * p_.Dk, s_.Tq * p_.H / std::max<Index>(1, p_.G));
}

template <class T>
void ScoreBounds<T>::add_units(Index i, Index j, double d_product, double d_product_change) {
  const double size = std::fabs(d_product);
  const double of_left = sum_error(s_.Tk);
  const double of_right = sum_error(s_.Tq);
  for (Index u = 0; u < p_.U; ++u) {
    const double x = static_cast<double>(left_[i * p_.U + u]) + right_[j * p_.U + u];
    const double by = moved(x, left_change_[static_cast<std::size_t>(i * p_.U + u)] +
                                   right_change_[static_cast<std::size_t>(j * p_.U + u)]);
    const double t = std::tanh(x);
    const double slope = 1 - t * t;
    const double t_change = std::min(2.0, 8 * kEps + by);
    const double slope_change = std::min(1.0, 16 * kEps + 0.77 * by);  // |tanh''| <= 0.77
    const auto v = static_cast<double>(score_v_[u]);
    const double value = d_product * v * slope;
    const double change =
        std::fabs(v) * (d_product_change * (slope + slope_change) + size * slope_change) +
        2 * kTiny;
    dleft_.add(i * p_.U + u, value, change + of_left * std::fabs(value));
    dright_.add(j * p_.U + u, value, change + of_right * std::fabs(value));
    dscore_v_.add(u, d_product * t,
                  d_product_change * (std::fabs(t) + t_change) + size * t_change +
                      v_.error * (size + d_product_change) * std::fabs(t) + 2 * kTiny);
  }
}

template <class T>
void ScoreBounds<T>::end_head(Index b, Index h) {
  if (kind() == ScoreKind::kCosine) end_cosine(b, h);
  if (kind() == ScoreKind::kBilinear) end_bilinear(b, h);
  if (kind() == ScoreKind::kAdditive) end_additive(b, h);
}

// Gradients through the projection of the bilinear score:
//   dq_ic = sum_x W_cx dleft_ix        dW_cx = sum_i q_ic dleft_ix
template <class T>
void ScoreBounds<T>::end_bilinear(Index b, Index h) {
  for (Index i = 0; i < s_.Tq; ++i) {
    if (!query_live_[static_cast<std::size_t>(i)]) continue;
    for (Index c = 0; c < p_.Dq; ++c) {
      double sum = 0;
      for (Index x = 0; x < p_.Dk; ++x) {
        const Index place = i * p_.Dk + x;
        sum += w_rows_.row(c)[x] * dleft_.bound(place, sum_error(p_.Dk) + q_.error) + kTiny;
        if (w_.given()) {
          *w_.at(p_, b, h, c, x) += q_rows_.row(i)[c] * dleft_.bound(place, w_.error) + kTiny;
        }
      }
      if (q_.given()) *q_.at(p_, b, h, s_.q0 + i, c) += sum;
    }
  }
}

// Gradients through the normalisation of the cosine, whose rows y = x / |x| are equal on all paths:
//   dx = (dy - y (y . dy)) / |x|
template <class T>
void ScoreBounds<T>::end_cosine(Index b, Index h) {
  const Index width = p_.Dk;
  const auto rows = [&](const Spread& d, const std::vector<char>& live, const Rows& x,
                        const Rows& unit, Index head, Index first, const BoundSum<T>& to) {
    for (Index n = 0; to.given() && n < static_cast<Index>(live.size()); ++n) {
      const double most = *std::max_element(x.row(n), x.row(n) + width);
      if (!live[static_cast<std::size_t>(n)] || !(most > 0)) continue;
      double length = 0, along = 0, size = 0;
      for (Index c = 0; c < width; ++c) {
        const Index place = n * width + c;
        const double y = finite(unit.row(n)[c]);
        length += (x.row(n)[c] / most) * (x.row(n)[c] / most);
        along += y * d.bound(place, 0);
        size += y * std::fabs(d.value[static_cast<std::size_t>(place)]);
      }
      length = most * std::sqrt(length);
      along += sum_error(width) * size;
      for (Index c = 0; c < width; ++c) {
        const double y = finite(unit.row(n)[c]);
        const double all = std::fabs(d.value[static_cast<std::size_t>(n * width + c)]) + y * size;
        const double bound = d.bound(n * width + c, 0) + y * along;
        const double sum = bound + (to.error + 8 * kEps) * (all + bound);
        *to.at(p_, b, head, first + n, c) += finite(sum / length) + kTiny;
      }
    }
  };
  rows(dleft_, query_live_, q_rows_, left_rows_, h, s_.q0, q_);
  rows(dright_, key_live_, k_rows_, right_rows_, p_.key_head(h), s_.k0, k_);
}

// Gradients through the projections of the additive score:
//   dx_c = sum_u W_uc d_u     dW_uc = sum over rows of d_u x_c     db_u = sum over rows of d_u
template <class T>
void ScoreBounds<T>::end_additive(Index b, Index h) {
  const auto rows = [&](const Spread& d, Index count, const std::vector<char>& live, const Rows& w,
                        const Rows& x, const auto& row_of, const BoundSum<T>& dx,
                        const BoundSum<T>& dw) {
    for (Index n = 0; n < count; ++n) {
      if (!live[static_cast<std::size_t>(n)]) continue;
      for (Index u = 0; u < p_.U; ++u) {
        const Index place = n * p_.U + u;
        dw.add_row(p_, b, h, u, d.bound(place, dw.error), x.row(n), x.width);
        if (!dx.given()) continue;
        const double bound = d.bound(place, sum_error(p_.U) + dx.error);
        dx.add_row(p_, b, row_of(n).first, row_of(n).second, bound, w.row(u), w.width);
      }
    }
  };
  rows(
      dleft_, s_.Tq, query_live_, w_rows_, q_rows_,
      [&](Index n) { return std::pair(h, s_.q0 + n); }, q_, wq_);
  rows(
      dright_, s_.Tk, key_live_, wk_rows_, k_rows_,
      [&](Index n) { return std::pair(p_.key_head(h), s_.k0 + n); }, k_, wk_);
  for (Index u = 0; u < p_.U; ++u) {
    if (v_.given()) *v_.at(p_, b, h, 0, u) += dscore_v_.bound(u, 0);
    for (Index i = 0; b_.given() && i < s_.Tq; ++i) {
      if (!query_live_[static_cast<std::size_t>(i)]) continue;
      *b_.at(p_, b, h, 0, u) += dleft_.bound(i * p_.U + u, b_.error);
    }
  }
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_SCORE_BOUNDS_H_
