// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_SCORE_BOUNDS_PASSES_H_
#define QKV_TESTS_ATTENTION_SCORE_BOUNDS_PASSES_H_

#include "tests/attention/score_bounds.h"

// The pass over one head: functions of ScoreBounds from set_head to end_head.
namespace qkv::test {

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
void ScoreBounds<T>::add_pair(Index b, Index h, Index i, Index j, double draw, double change) {
  query_live_[static_cast<std::size_t>(i)] = key_live_[static_cast<std::size_t>(j)] = 1;
  if (kind() == ScoreKind::kAdditive) return add_units(i, j, draw, change);
  const double size = std::fabs(draw);
  if (kind() == ScoreKind::kCosine) return add_cosines(i, j, draw, change);
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
    dleft_.add(i * p_.Dk + x, draw * right, (change + rounding) * std::fabs(right) + kTiny);
  }
}

template <class T>
void ScoreBounds<T>::add_cosines(Index i, Index j, double draw, double change) {
  const auto add = [&](Spread& to, Index row, const T* other, Index terms) {
    const double by = change + sum_error(terms) * std::fabs(draw);
    for (Index c = 0; c < p_.Dk; ++c) {
      const auto x = static_cast<double>(other[c]);
      to.add(row * p_.Dk + c, draw * x, by * std::fabs(x) + kTiny);
    }
  };
  add(dleft_, i, right_ + j * p_.Dk, s_.Tk);
  add(dright_, j, left_ + i * p_.Dk, s_.Tq * p_.H / std::max<Index>(1, p_.G));
}

template <class T>
void ScoreBounds<T>::add_units(Index i, Index j, double draw, double draw_change) {
  const double size = std::fabs(draw);
  const double of_left = sum_error(s_.Tk);
  const double of_right = sum_error(s_.Tq);
  for (Index u = 0; u < p_.U; ++u) {
    const double x = static_cast<double>(left_[i * p_.U + u]) + right_[j * p_.U + u];
    const double by = moved(x, left_change_[static_cast<std::size_t>(i * p_.U + u)] +
                                   right_change_[static_cast<std::size_t>(j * p_.U + u)]);
    const double t = std::tanh(x);
    const double slope = 1 - t * t;
    const double t_change = std::min(2.0, 8 * kEps + by);
    const double slope_change = std::min(1.0, 16 * kEps + 0.77 * by);
    const auto v = static_cast<double>(score_v_[u]);
    const double value = draw * v * slope;
    const double change =
        std::fabs(v) * (draw_change * (slope + slope_change) + size * slope_change) + 2 * kTiny;
    dleft_.add(i * p_.U + u, value, change + of_left * std::fabs(value));
    dright_.add(j * p_.U + u, value, change + of_right * std::fabs(value));
    dscore_v_.add(u, draw * t,
                  draw_change * (std::fabs(t) + t_change) + size * t_change +
                      v_.error * (size + draw_change) * std::fabs(t) + 2 * kTiny);
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

// Gradients through the normalisation of the cosine:
//   dx = (dy - y (y . dy)) / |x|, of rows y = x / |x| that are equal on all paths
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
//   dx_c = sum_u W_uc d_u        dW_uc = sum over rows of d_u x_c        db_u = sum d_u
template <class T>
void ScoreBounds<T>::end_additive(Index b, Index h) {
  const auto rows = [&](const Spread& d, Index count, const std::vector<char>& live, const Rows& w,
                        const Rows& x, const auto& row_of, const BoundSum<T>& dx,
                        const BoundSum<T>& dw) {
    std::vector<double> sum(static_cast<std::size_t>(x.width));
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

#endif  // QKV_TESTS_ATTENTION_SCORE_BOUNDS_PASSES_H_
