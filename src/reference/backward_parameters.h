// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_BACKWARD_PARAMETERS_H_
#define QKV_REFERENCE_BACKWARD_PARAMETERS_H_

#include "core/integers.h"
#include "reference/backward.h"

// The second half of Backward: computes the gradients of parameters and inputs, each in its own
// shape, from the results of the query and key sweeps.
namespace qkv::reference {

// Calls f(at, row) with the gradients of each row of queries i0 .. i1-1 that has an unmasked key,
// over batch entries and heads in ascending order.
template <class T>
template <class F>
void Backward<T>::for_each_row(Index i0, Index i1, core::Arena& arena, const F& f) {
  Worker w = take_worker(arena);
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    for (Index h = 0; h < p_.H; ++h) {
      for (Index i = i0; i < std::min(i1, s.Tq); ++i) {
        x_.stop();
        const QueryAt at = query_at(b, h, i);
        const T factor = *factor_.of(b, h, s.q0 + i);
        if (!weight_gradients(p_, x_, from_, at, 0, s.Tk, factor, w.row)) continue;
        score_gradients(*delta_.of(b, h, s.q0 + i), w.row);
        f(at, w.row);
      }
    }
  }
}

// Adds ds_ij to dbias_ij for queries i0 .. i1-1.
template <class T>
void Backward<T>::bias_gradient(Index i0, Index i1, core::Arena& arena) {
  for_each_row(i0, i1, arena, [&](const QueryAt& at, const GradientRow<T>& row) {
    T* to = own_.at(to_.bias, at.b, at.h, at.i, 0);
    for (Index j = 0; j < p_.Tk; ++j) to[j * to_.bias.own.col_stride] += row.ds[j];
  });
}

template <class T>
void Backward<T>::captured_gradients(core::Arena& arena) {
  expressions::CapturedGradients all(p_.mods, to_.captured);
  all.start();
  for_each_row(0, p_.Tq, arena, [&](const QueryAt& at, const GradientRow<T>& row) {
    all.add(detail::InstanceTarget::kBaseline,
            {core::place_of(p_, at, 0), core::lengths_of(p_, at)}, row.scores.count,
            row.scores.capped, row.ds);
  });
  all.deliver(to_.captured, x_.stop);
}

// One side of the score: the rows of q (or k), the transforms that make `left` (or `right`) from
// them, and the gradients before and after these transforms.
template <class T>
struct Backward<T>::Side {
  const RowMaps& maps;
  const core::RowMapTargets& to;
  const Operand& x;
  Index width;
  const RowsOf<T>& dy;               // gradients of left or right
  const RowsOf<T>& dx;               // gradients of the rows of q or k
  const RowsOf<std::uint8_t>& live;  // whether each row is in an unmasked pair
  bool of_keys;

  // The number of rows of batch entry or sequence b.
  Index count(const Problem& p, Index b) const {
    const Sequence s = p.sequence(b);
    return of_keys ? s.Tk : s.Tq;
  }
  // Returns row n of batch entry or sequence b, for head `head` of dy.
  RowAt<T> at(const Problem& p, Index b, Index head, Index n) const {
    return of_keys ? key_row<T>(p, b, input_head(p, head), n) : query_row<T>(p, b, head, n);
  }
  // The head of x from which head `head` of dy is computed.
  Index input_head(const Problem& p, Index head) const {
    return of_keys && dy.heads == p.H ? p.key_head(head) : head;
  }
};

// Computes the gradients of one head's rows from the gradients of the transformed rows. Unless dg
// is null, the gradient of the RMS norm's gain is added to it in blocks of rows, each summed from
// zero.
template <class T>
void Backward<T>::map_back(const Side& side, Index b, Index head, const BackWorker& w, T* dg) {
  const Index width = side.width;
  const Index count = side.count(p_, b);
  for (Index n0 = 0; n0 < count; n0 += kGradientBlock) {
    if (dg != nullptr) std::fill_n(w.sums, width, T(0));
    for (Index n = n0; n < std::min(count, n0 + kGradientBlock); ++n) {
      x_.stop();
      const RowAt<T> at = side.at(p_, b, head, n);
      const T* dy = side.dy.of(b, head, at.row);
      T* dx = side.dx.of(b, head, at.row);
      std::fill(dx, dx + width, T(0));
      if (!*side.live.of(b, head, at.row)) continue;
      if (side.maps.product.given()) {
        multiply_back(side.maps.product, head, dy, width, dx, x_.stop);
      } else {
        std::copy_n(dy, width, dx);
      }
      if (side.maps.maps().empty()) continue;
      load_row(p_, side.x, b, at.head, at.row, width, w.row);
      change_back(side.maps.maps(), at, w.row, width, dx, w.outputs, dg == nullptr ? dg : w.sums);
    }
    for (Index c = 0; dg != nullptr && c < width; ++c) dg[c] += w.sums[c];
  }
}

// Computes the gradients of the rows of all heads. The gradient of a gain is summed over b and
// heads in ascending order, so if it is requested, all heads that share a gain are one task.
template <class T>
template <class Call>
void Backward<T>::maps_back(const Side& side, Call& call) {
  const Index heads = side.dy.heads;
  if (!side.to.gain.given()) {
    return call.for_each_task(p_.B * heads, [&](Index task, core::Arena& arena) {
      map_back(side, task / heads, task % heads, take_back_worker(arena), nullptr);
    });
  }
  const Index gains = side.to.gain.own.head_stride == 0 ? 1 : side.of_keys ? p_.G : p_.H;
  call.for_each_task(gains, [&](Index gain, core::Arena& arena) {
    const BackWorker w = take_back_worker(arena);
    for (Index b = 0; b < p_.B; ++b) {
      for (Index head = 0; head < heads; ++head) {
        const Index of = side.input_head(p_, head);
        if (gains > 1 && of != gain) continue;
        map_back(side, b, head, w, own_.at(side.to.gain, 0, of, 0, 0));
      }
    }
  });
}

// Computes the gradients of unit u of the projection y = W x + b, whose x is a row after all other
// transforms: dW_uc is the sum of dy_u x_c, and db_u the sum of dy_u, over b, h and the rows that
// are in an unmasked pair. The sum of each (b, h) starts from zero.
template <class T>
void Backward<T>::product_gradients(const Side& side, Index u, const BackWorker& w) {
  const bool transposed = side.maps.product.transposed;
  const Index width = side.to.w.given() ? side.width : 0;
  for (Index b = 0; b < p_.B; ++b) {
    for (Index h = 0; h < p_.H; ++h) {
      std::fill_n(w.sums, width, T(0));
      T sum(0);
      for (Index n = 0; n < side.count(p_, b); ++n) {
        x_.stop();
        const RowAt<T> at = side.at(p_, b, h, n);
        if (!*side.live.of(b, h, at.row)) continue;
        const T dy = side.dy.of(b, h, at.row)[u];
        sum += dy;
        if (width == 0) continue;
        load_row(p_, side.x, b, at.head, at.row, width, w.row);
        change_row(side.maps.maps(), at, width, w.row);
        for (Index c = 0; c < width; ++c) w.sums[c] = fused_multiply_add(dy, w.row[c], w.sums[c]);
      }
      for (Index c = 0; c < width; ++c) {
        *own_.at(side.to.w, b, h, transposed ? c : u, transposed ? u : c) += w.sums[c];
      }
      if (side.to.b.given()) *own_.at(side.to.b, b, h, 0, u) += sum;
    }
  }
}

// Computes the gradient of element u of the additive score's vector v: the sum of the queries'
// terms, over b, h and queries in ascending order.
template <class T>
void Backward<T>::score_v_gradient(Index u) {
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    for (Index h = 0; h < p_.H; ++h) {
      x_.stop();
      T sum(0);
      for (Index n = s.q0; n < s.q0 + s.Tq; ++n) {
        if (*query_live_.of(b, h, n)) sum += dscore_v_.of(b, h, n)[u];
      }
      *own_.at(to_.score_v, b, h, 0, u) += sum;
    }
  }
}

template <class T>
template <class Call>
void Backward<T>::parameter_gradients(Call& call) {
  own_.clear(x_.stop, [](const GradientTarget&) { return true; });
  if (to_.bias.given() && p_.Tq > 0) {
    // There is one task per query, or one for all if the bias has no query axis.
    const Index rows = to_.bias.own.row_stride == 0 ? p_.Tq : 1;
    call.for_each_task(core::divide_up(p_.Tq, rows), [&](Index task, core::Arena& arena) {
      bias_gradient(task * rows, task * rows + rows, arena);
    });
  }
  if (!to_.captured.empty()) {
    call.for_each_task(1, [&](Index, core::Arena& arena) { captured_gradients(arena); });
  }
  const Side sides[] = {{p_.query_maps, to_.query, p_.q, p_.Dq, dleft_, dq_, query_live_, false},
                        {p_.key_maps, to_.key, p_.k, p_.Dk, dright_, dk_, key_live_, true}};
  for (const Side& side : sides) {
    if (side.maps.is_identity() || (p_.q_rows == 0 && p_.k_rows == 0)) continue;
    maps_back(side, call);
    if (p_.q_rows == 0 || p_.k_rows == 0) continue;
    if (!side.to.w.given() && !side.to.b.given()) continue;
    call.for_each_task(side.maps.product.units, [&](Index u, core::Arena& arena) {
      product_gradients(side, u, take_back_worker(arena));
    });
  }
  if (to_.score_v.given() && p_.q_rows != 0 && p_.k_rows != 0) {
    call.for_each_task(p_.U, [&](Index u, core::Arena&) { score_v_gradient(u); });
  }
}

// Adds rows to own_ in ascending order of (b, head, row, column), which sums over broadcast axes.
template <class T>
void Backward<T>::sum_into_own(const RowsOf<T>& rows, bool keys, const GradientTarget& target) {
  if (!target.given() || rows.total == 0) return;
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    const Index first = keys ? s.k0 : s.q0;
    const Index count = keys ? s.Tk : s.Tq;
    for (Index head = 0; head < rows.heads; ++head) {
      x_.stop();
      // If each query head has its own key rows, they are summed into its key head's rows.
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
