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

// The numbers that two paths have in common, bit-identical. Paths with fused multiply-adds have
// equal scores, and so equal out and lse, if one is given what the other saved. Since tanh differs
// between paths, of an additive score only the projections are equal.
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

// The bounds of a gradient's elements, and the error of its sums.
template <class T>
struct BoundSum {
  static constexpr double kEps = std::numeric_limits<T>::epsilon();
  static constexpr double kTiny = std::numeric_limits<T>::denorm_min();

  double* bounds = nullptr;
  const GradientTarget* target = nullptr;
  double error = 0;
  double tiny = kTiny;  // largest loss of a term by underflow

  bool given() const { return bounds != nullptr; }

  // The error of a sum of n terms whose sizes add up to 1.
  static double sum_error(double n) { return (8 + 4 * std::sqrt(n)) * kEps; }

  // Begins a gradient in which `places` rows of one batch entry (or of all packed ones), each a sum
  // of `terms` terms, share the buffer.
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

// Rows of numbers, and by how much each may differ.
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
  // The bound of this element in a sum of this error.
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
  // The bound of a score's difference, times scale.
  double change(Index i, Index j) const;
  // Adds the pair (i, j), where `draw` is the gradient into the score before scale.
  void add_pair(Index b, Index h, Index i, Index j, double draw, double change);
  // Called after the last pair of a head.
  void end_head(Index b, Index h);

 private:
  static constexpr double kEps = BoundSum<T>::kEps;
  static constexpr double kTiny = BoundSum<T>::kTiny;
  // From this argument on 1 - tanh(x)^2 is below eps / 2.
  static constexpr double kSaturated = sizeof(T) == 4 ? 9 : 19;

  ScoreKind kind() const { return kind_of(p_); }
  static double sum_error(Index n) { return BoundSum<T>::sum_error(static_cast<double>(n)); }
  // An infinity or NaN in an input propagates, however it is rounded: it needs no bound.
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

  // The bound of the difference of a projection sum_c w_c x_c.
  double projected(Index width, double w, double x) const {
    if (same_ != Same::kNothing) return 0;
    return finite(static_cast<double>(width + 2) * (kEps * w * x + kTiny));
  }
  void set_projections();
  // The bound of the difference of the argument of a tanh, as far as it is visible.
  double moved(double argument, double change) const {
    return std::fabs(argument) - change > kSaturated ? 0 : change;
  }
  double changes_of_units(Index i, Index j) const;
  void add_cosines(Index i, Index j, double draw, double change);
  void add_units(Index i, Index j, double draw, double draw_change);
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
  std::vector<double> left_change_, right_change_;  // of projections, [T,U] (bilinear: [T])
  std::vector<char> query_live_, key_live_;
  Spread dleft_, dright_, dscore_v_;
};

}  // namespace qkv::test

#include "tests/attention/score_bounds_passes.h"  // the rest of the class

#endif  // QKV_TESTS_ATTENTION_SCORE_BOUNDS_H_
