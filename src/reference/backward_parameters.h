// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_BACKWARD_PARAMETERS_H_
#define QKV_REFERENCE_BACKWARD_PARAMETERS_H_

#include "reference/backward.h"

// The second half of Backward: from what the sweeps left behind to the gradients of parameters
// and inputs, each in its own shape.
namespace qkv::reference {

// dbias_j += ds_ij for queries i0 .. i1-1, over batch entries and heads in ascending order.
template <class T>
void Backward<T>::bias_gradient(Index i0, Index i1, core::Arena& arena) {
  Worker w = take_worker(arena);
  for (Index b = 0; b < p_.B; ++b) {
    for (Index h = 0; h < p_.H; ++h) {
      for (Index i = i0; i < i1; ++i) {
        x_.stop();
        const QueryAt at = query_at(b, h, i);
        const T factor = *factor_.of(b, h, i);
        if (!weight_gradients(p_, x_, from_, at, 0, p_.Tk, factor, w.row)) continue;
        score_gradients(*delta_.of(b, h, i), w.row);
        T* to = own_.at(to_.bias, b, h, i, 0);
        for (Index j = 0; j < p_.Tk; ++j) to[j * to_.bias.own.col_stride] += w.row.ds[j];
      }
    }
  }
}

// Through the projections, for one query head:
//   bilinear  left_i = q_i^T W        dq_ic = sum_x W_cx dleft_ix
//   additive  left_i = Wq q_i + b     dq_ic = sum_u Wq_uc dleft_iu     dk_jc = sum_u Wk_uc
//   dright_ju
template <class T>
void Backward<T>::project_back(Index b, Index h) {
  const Sequence s = p_.sequence(b);
  const Index width = score_width(p_);
  for (Index i = 0; i < s.Tq; ++i) {
    x_.stop();
    const T* dleft = dleft_.of(b, h, s.q0 + i);
    T* dq = dq_.of(b, h, s.q0 + i);
    std::fill(dq, dq + p_.Dq, T(0));
    if (!*query_live_.of(b, h, s.q0 + i)) continue;
    switch (p_.score) {
      case ScoreKind::kDot:
        break;  // nothing between q and left
      case ScoreKind::kBilinear:
        project_rows({p_.w, h, x_.stop}, p_.Dq, dleft, width, dq);
        break;
      case ScoreKind::kAdditive:
        project_columns({p_.wq, h, x_.stop}, dleft, width, dq, p_.Dq);
        break;
    }
  }
  if (!maps_keys(p_)) return;
  for (Index j = 0; j < s.Tk; ++j) {
    x_.stop();
    T* dk = dk_.of(b, h, s.k0 + j);
    std::fill(dk, dk + p_.Dk, T(0));
    if (!*key_live_.of(b, h, s.k0 + j)) continue;
    project_columns({p_.wk, h, x_.stop}, dright_.of(b, h, s.k0 + j), width, dk, p_.Dk);
  }
}

// Row c of dW: dW_cx = sum over b, h, i of q_ic dleft_ix; each (b, h) is summed from zero.
template <class T>
void Backward<T>::bilinear_parameters(Index c) {
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    for (Index h = 0; h < p_.H; ++h) {
      for (Index x = 0; x < p_.Dk; ++x) {
        x_.stop();
        T sum(0);
        for (Index i = 0; i < s.Tq; ++i) {
          if (!*query_live_.of(b, h, s.q0 + i)) continue;
          const T q = element<T>(p_, p_.q, b, h, s.q0 + i, c);
          sum = fused_multiply_add(q, dleft_.of(b, h, s.q0 + i)[x], sum);
        }
        *own_.at(to_.w, b, h, c, x) += sum;
      }
    }
  }
}

// Unit u: dWq_uc = sum dleft_iu q_ic, dWk_uc = sum dright_ju k_jc, db_u = sum dleft_iu,
// dv_u = sum of the queries' shares; sums over b, h and rows, each (b, h) from zero.
template <class T>
void Backward<T>::additive_parameters(Index u) {
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    for (Index h = 0; h < p_.H; ++h) {
      x_.stop();
      // sum over live rows of d_u * x (x = 1 where no operand is given)
      const auto sum_rows = [&](const RowsOf<T>& d, bool keys, const Operand* x, Index c) {
        const RowsOf<std::uint8_t>& live = keys ? key_live_ : query_live_;
        const Index first = keys ? s.k0 : s.q0;
        const Index head = keys ? p_.key_head(h) : h;
        x_.stop();
        T sum(0);
        for (Index n = first; n < first + (keys ? s.Tk : s.Tq); ++n) {
          if (!*live.of(b, h, n)) continue;
          const T value = x == nullptr ? T(1) : element<T>(p_, *x, b, head, n, c);
          sum = fused_multiply_add(d.of(b, h, n)[u], value, sum);
        }
        return sum;
      };
      for (Index c = 0; to_.wq.given() && c < p_.Dq; ++c) {
        *own_.at(to_.wq, b, h, u, c) += sum_rows(dleft_, false, &p_.q, c);
      }
      for (Index c = 0; to_.wk.given() && c < p_.Dk; ++c) {
        *own_.at(to_.wk, b, h, u, c) += sum_rows(dright_, true, &p_.k, c);
      }
      if (to_.score_b.given()) {
        *own_.at(to_.score_b, b, h, 0, u) += sum_rows(dleft_, false, nullptr, 0);
      }
      if (to_.score_v.given()) {
        *own_.at(to_.score_v, b, h, 0, u) += sum_rows(dscore_v_, false, nullptr, 0);
      }
    }
  }
}

template <class T>
template <class Call>
void Backward<T>::parameter_gradients(Call& call) {
  own_.clear(x_.stop, [](const GradientTarget&) { return true; });
  if (to_.bias.given() && p_.Tq > 0) {
    // One task per query, or one for all when the bias has no query axis of its own.
    const Index rows = to_.bias.own.row_stride == 0 ? p_.Tq : 1;
    call.for_each_task((p_.Tq + rows - 1) / rows, [&](Index task, core::Arena& arena) {
      bias_gradient(task * rows, task * rows + rows, arena);
    });
  }
  if (!maps_queries(p_) || (p_.q_rows == 0 && p_.k_rows == 0)) return;
  call.for_each_task(p_.B * p_.H,
                     [&](Index task, core::Arena&) { project_back(task / p_.H, task % p_.H); });
  if (p_.q_rows == 0 || p_.k_rows == 0) return;
  switch (p_.score) {
    case ScoreKind::kDot:
      break;
    case ScoreKind::kBilinear:
      if (!to_.w.given()) break;
      call.for_each_task(p_.Dq, [&](Index c, core::Arena&) { bilinear_parameters(c); });
      break;
    case ScoreKind::kAdditive:
      call.for_each_task(p_.U, [&](Index u, core::Arena&) { additive_parameters(u); });
      break;
  }
}

// own += rows, over (b, head, row, column) in ascending order: sums what was broadcast.
template <class T>
void Backward<T>::sum_into_own(const RowsOf<T>& rows, bool keys, const GradientTarget& target) {
  if (!target.given() || rows.total == 0) return;
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    const Index first = keys ? s.k0 : s.q0;
    const Index count = keys ? s.Tk : s.Tq;
    for (Index head = 0; head < rows.heads; ++head) {
      x_.stop();
      // Rows per query head that belong to keys are summed into the key head they read.
      const Index to_head = keys && rows.heads == p_.H ? p_.key_head(head) : head;
      for (Index n = 0; n < count; ++n) {
        x_.stop();
        const T* from = rows.of(b, head, first + n);
        T* to = own_.at(target, b, to_head, first + n, 0);
        for (Index c = 0; c < rows.width; ++c) to[c * target.own.col_stride] += from[c];
      }
    }
  }
}

template <class T>
void Backward<T>::input_gradients() {
  sum_into_own(maps_queries(p_) ? dq_ : dleft_, false, to_.q);
  sum_into_own(maps_keys(p_) ? dk_ : dright_, true, to_.k);
  sum_into_own(dvalue_, true, to_.v);
  const auto sum_queries = [&](const RowsOf<T>& rows, const GradientTarget& target) {
    if (!target.given() || p_.q_rows == 0) return;
    for (Index b = 0; b < p_.B; ++b) {
      const Sequence s = p_.sequence(b);
      for (Index h = 0; h < p_.H; ++h) {
        x_.stop();
        T sum(0);
        for (Index i = 0; i < s.Tq; ++i) sum += *rows.of(b, h, s.q0 + i);
        *own_.at(target, b, h, 0, 0) += sum;
      }
    }
  };
  sum_queries(dalibi_, to_.alibi);
  sum_queries(dsinks_, to_.sinks);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_BACKWARD_PARAMETERS_H_
