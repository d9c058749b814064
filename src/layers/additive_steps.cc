// SPDX-License-Identifier: Apache-2.0
#include "layers/additive_steps.h"

#include <algorithm>
#include <limits>

#include "core/integers.h"
#include "core/storage.h"
#include "layers/additive_loops.h"
#include "layers/linear_products.h"
#include "layers/packed.h"

namespace qkv::layers {
namespace {

using core::kGradientBlock;
using dense::RowsOf;
using kernels::ExponentialForm;
using kernels::kPanel;
using kernels::kUnitLanes;
using runtime::Arena;
using runtime::Call;

constexpr Index kSourcesPerTask = 8;

// Calls f(b, arena) for each source, with an empty arena.
template <class F>
void for_each_source(Call& call, Index B, const F& f) {
  call.for_each_task(core::divide_up(B, kSourcesPerTask), [&](Index task, Arena& arena) {
    const Index first = task * kSourcesPerTask;
    for (Index b = first; b < std::min(first + kSourcesPerTask, B); ++b) {
      arena.reset();
      f(b, arena);
    }
  });
}

// Returns the address of row (a, b) of x, [A,B,C].
template <class T, class AnyView>
T* row_at(const AnyView& x, Index a, Index b) {
  return x.template as<std::remove_const_t<T>>() + a * x.stride(0) + b * x.stride(1);
}

// Returns rows (b, 0), (b, 1), ... of x, [B,Ts,C].
template <class T, class AnyView>
RowsOf<T> rows_of_source(const AnyView& x, Index b) {
  return {row_at<T>(x, b, 0), x.stride(1)};
}

// Returns the first `width` channels of x, [A,B,units], as a view [A,B,width].
View first_channels(Tensor& x, Index width) { return slice(x, 2, 0, width); }

}  // namespace

// Addresses in the arrays of `s`: of the data of source b, or of the data of its query in `step`.
template <class T>
struct AdditiveSteps::Arrays {
  AdditiveSteps& s;

  static T* data(Tensor& tensor) { return tensor.values<T>().data(); }
  Index panel_stride() const { return 2 * s.units_ * kPanel; }
  T* panels(Index b) const { return data(s.panels_) + b * (s.padded_ / kPanel) * panel_stride(); }
  T* column(Index b, Index c) const {
    return data(s.columns_) + (b * s.units_ / kUnitLanes + c) * s.Ts_ * kUnitLanes;
  }
  T* column_powers(Index b, Index c) const { return column(s.B_ + b, c); }
  T* d_column(Index b, Index c) const {
    return data(s.d_columns_) + (b * s.units_ / kUnitLanes + c) * s.Ts_ * kUnitLanes;
  }
  T* query(Index step, Index b) const {
    return data(s.queries_) + (step * s.B_ + b) * 2 * s.units_;
  }
  T* weights(Index step, Index b) const { return data(s.weights_) + (step * s.B_ + b) * s.padded_; }
  T* d_projected(Index step, Index b) const {
    const Index U = s.d_projected_.size(2);
    return data(s.d_projected_) + (step * s.B_ + b) * U;
  }
};

AdditiveSteps::AdditiveSteps(const AdditiveAttention& layer, const StepSources& sources,
                             Index steps, Context& context)
    : parameters_(layer.parameters()),
      sources_(sources),
      context_(context),
      B_(sources.keys.size(0)),
      Ts_(sources.keys.size(1)),
      units_(core::round_up(parameters_.v.size(0), kUnitLanes)),
      padded_(core::round_up(Ts_, kPanel)),
      lengths_(static_cast<std::size_t>(B_)),
      query_(parameters_.w_q, no_bias_, context),
      v_(parameters_.v.dtype(), {units_}),
      panels_(dtype(), {B_, padded_ / kPanel, 2 * units_, kPanel}),
      columns_(dtype(), {2, B_, units_ / kUnitLanes, Ts_, kUnitLanes}),
      forms_(static_cast<std::size_t>(B_), ExponentialForm::kSmall),
      queries_(dtype(), {steps, B_, 2 * units_}),
      query_forms_(static_cast<std::size_t>(steps * B_), ExponentialForm::kSmall),
      weights_(dtype(), {steps, B_, padded_}),
      projected_(dtype(), {1, B_, units_}) {
  for (Index b = 0; b < B_; ++b) {
    lengths_[static_cast<std::size_t>(b)] =
        sources.lengths.as<std::int32_t>()[b * sources.lengths.stride(0)];
  }
  copy(parameters_.v, slice(v_, 0, 0, parameters_.v.size(0)));
  project_keys();
}

// Computes the exponentials of Wk k_j in the two layouts that scores and gradients read.
void AdditiveSteps::project_keys() {
  constexpr std::string_view kFunction = "AdditiveSteps";
  Tensor projected(dtype(), {B_, Ts_, units_});
  linear_forward(kFunction, sources_.keys, {parameters_.w_k, no_bias_},
                 first_channels(projected, parameters_.v.size(0)), context_);
  core::dispatch(dtype(), [&]<class T>() {
    Call call(context_, kFunction, 0, Arena::cost<T>(2 * units_));
    const AdditiveLoops<T> loops(context_, kFunction);
    const Arrays<T> at{*this};
    for_each_source(call, B_, [&](Index b, Arena& arena) {
      T* const x = arena.take<T>(2 * units_).data();
      T* const power = x + units_;
      ExponentialForm& form = forms_[static_cast<std::size_t>(b)];
      for (Index j = 0; j < lengths_[static_cast<std::size_t>(b)]; ++j) {
        const ExponentialForm form_of_key = loops.by.exponentials(
            projected.values<T>().data() + (b * Ts_ + j) * units_, units_, x, power);
        form = std::max(form, form_of_key);
        T* const panel = at.panels(b) + j / kPanel * at.panel_stride() + j % kPanel;
        // The panels start as zeros, so powers are written only if the key has any.
        const Index numbers = form_of_key == ExponentialForm::kPowers ? 2 * units_ : units_;
        for (Index u = 0; u < numbers; ++u) panel[u * kPanel] = x[u];
        for (Index c = 0; c < units_ / kUnitLanes; ++c) {
          std::copy_n(x + c * kUnitLanes, kUnitLanes, at.column(b, c) + j * kUnitLanes);
          std::copy_n(power + c * kUnitLanes, kUnitLanes, at.column_powers(b, c) + j * kUnitLanes);
        }
      }
    });
  });
}

void AdditiveSteps::attend(Index step, const ConstView& s, const View& out) {
  constexpr std::string_view kFunction = "AdditiveSteps::attend";
  query_.forward(s, first_channels(projected_, parameters_.v.size(0)));
  core::dispatch(dtype(), [&]<class T>() {
    Call call(context_, kFunction, 0, 0);
    const AdditiveLoops<T> loops(context_, kFunction);
    const Arrays<T> at{*this};
    const Index E = sources_.values.size(2);
    for_each_source(call, B_, [&](Index b, Arena&) {
      const Index length = lengths_[static_cast<std::size_t>(b)];
      T* const query = at.query(step, b);
      T* const w = at.weights(step, b);
      ExponentialForm& form = query_forms_[static_cast<std::size_t>(step * B_ + b)];
      form = loops.by.exponentials(projected_.values<T>().data() + b * units_, units_, query,
                                   query + units_);
      form = std::max(form, forms_[static_cast<std::size_t>(b)]);
      loops.scores(form, query, at.panels(b), at.panel_stride(), length,
                   {v_.values<T>().data(), units_}, w);
      std::fill(w + length, w + padded_, -std::numeric_limits<T>::infinity());
      T max = 0;
      T sum = 0;
      loops.rows.softmax(w, padded_, core::kLeastExponent<T>, &max, &sum);
      for (Index j = 0; j < length; ++j) w[j] /= sum;
      dense::product<T>(loops.dense, {w, padded_}, 1, length,
                        rows_of_source<const T>(sources_.values, b), E, {row_at<T>(out, 0, b), E},
                        call.stop_point());
    });
  });
}

void AdditiveSteps::allocate_gradients() {
  if (d_v_.given()) return;
  d_projected_ = Tensor(dtype(), {queries_.size(0), B_, parameters_.v.size(0)});
  d_columns_ = Tensor(dtype(), {B_, units_ / kUnitLanes, Ts_, kUnitLanes});
  d_v_ = Tensor(dtype(), {B_, units_});
  d_scores_ = Tensor(dtype(), {B_, padded_});
  d_left_ = Tensor(dtype(), {B_, units_});
}

void AdditiveSteps::undo(Index step, const ConstView& d_out, const View& ds) {
  constexpr std::string_view kFunction = "AdditiveSteps::undo";
  allocate_gradients();
  core::dispatch(dtype(), [&]<class T>() {
    Call call(context_, kFunction, 0, 0);
    const AdditiveLoops<T> loops(context_, kFunction);
    const Arrays<T> at{*this};
    const T* const v = v_.values<T>().data();
    for_each_source(call, B_, [&](Index b, Arena&) {
      const Index length = lengths_[static_cast<std::size_t>(b)];
      const T* const w = at.weights(step, b);
      T* const d = d_scores_.values<T>().data() + b * padded_;
      // Backward through out = sum_j w_j value_j:
      loops.dots(rows_of_source<const T>(sources_.values, b), length, row_at<const T>(d_out, 0, b),
                 sources_.values.size(2), d);
      // Backward through w = softmax(e):
      T mean = 0;
      for (Index j = 0; j < length; ++j) mean += w[j] * d[j];
      for (Index j = 0; j < length; ++j) d[j] = w[j] * (d[j] - mean);
      // Backward through e_j = v . tanh(p + Wk k_j):
      const T* const query = at.query(step, b);
      const ExponentialForm form = query_forms_[static_cast<std::size_t>(step * B_ + b)];
      T* const left = d_left_.values<T>().data() + b * units_;
      T* const weights = d_v_.values<T>().data() + b * units_;
      std::fill_n(left, units_, T(0));
      for (Index c = 0; c < units_ / kUnitLanes; ++c) {
        const Index u = c * kUnitLanes;
        loops.by.add_pairs(form, {query + u, query + units_ + u}, 1,
                           {at.column(b, c), at.column_powers(b, c)}, length, {d, padded_},
                           {left + u, weights + u, at.d_column(b, c)});
      }
      T* const d_projected = at.d_projected(step, b);
      for (Index u = 0; u < d_projected_.size(2); ++u) d_projected[u] = left[u] * v[u];
    });
  });
  // Backward through p = Wq s:
  query_.backward_input(slice(d_projected_, 0, step, step + 1), ds, Write::kAccumulate);
}

void AdditiveSteps::finish(const AllSteps& all, const View& d_values, const View& d_keys,
                           AdditiveAttention::Parameters& gradients) {
  constexpr std::string_view kFunction = "AdditiveSteps::finish";
  allocate_gradients();
  value_gradients(all.d_out, d_values);
  const Index U = parameters_.v.size(0);
  linear_backward_parameters(kFunction, all.s, d_projected_, LinearGradientViews{gradients.w_q},
                             Write::kOverwrite, context_);
  Tensor d_projected(dtype(), {B_, Ts_, U});  // the gradient of Wk k_j
  make_key_gradients(d_projected, gradients.v);
  linear_backward_parameters(kFunction, sources_.keys, d_projected,
                             LinearGradientViews{gradients.w_k}, Write::kOverwrite, context_);
  linear_backward_input(kFunction, d_projected, {parameters_.w_k, no_bias_}, d_keys,
                        Write::kAccumulate, context_);
}

// Computes the gradient of value_j, the sum over steps of w_j d_out.
void AdditiveSteps::value_gradients(const ConstView& d_out, const View& d_values) {
  constexpr std::string_view kFunction = "AdditiveSteps::finish";
  const Index steps = queries_.size(0);
  const Index E = d_values.size(2);
  core::dispatch(dtype(), [&]<class T>() {
    const Index scratch_size = dense::transposed_product_scratch(Ts_, E);
    Call call(context_, kFunction, 0, Arena::cost<T>(scratch_size));
    const AdditiveLoops<T> loops(context_, kFunction);
    const Arrays<T> at{*this};
    for_each_source(call, B_, [&](Index b, Arena& arena) {
      const RowsOf<T> to = rows_of_source<T>(d_values, b);
      for (Index j = 0; j < Ts_; ++j) std::fill_n(to.data + j * to.stride, E, T(0));
      T* const scratch = arena.take<T>(scratch_size).data();
      for (Index first = 0; first < steps; first += kGradientBlock) {
        const Index count = std::min(kGradientBlock, steps - first);
        const RowsOf<const T> d_out_rows{row_at<const T>(d_out, first, b), d_out.stride(0)};
        dense::add_transposed_product<T>(loops.dense, {at.weights(first, b), B_ * padded_},
                                         lengths_[static_cast<std::size_t>(b)], d_out_rows, count,
                                         E, dense::all_finite<T>(loops.dense, d_out_rows, count, E),
                                         to, scratch);
      }
    });
  });
}

// Computes `d_projected`, the gradient of Wk k_j (0 for keys beyond a source's length), and the
// gradient of v.
void AdditiveSteps::make_key_gradients(Tensor& d_projected, const View& d_v) {
  const Index U = parameters_.v.size(0);
  core::dispatch(dtype(), [&]<class T>() {
    const Arrays<T> at{*this};
    const T* const v = v_.values<T>().data();
    T* const sum = d_v.as<T>();
    std::fill_n(sum, U, T(0));
    for (Index b = 0; b < B_; ++b) {
      T* row = Arrays<T>::data(d_projected) + b * Ts_ * U;
      for (Index j = 0; j < lengths_[static_cast<std::size_t>(b)]; ++j, row += U) {
        for (Index u = 0; u < U; ++u) {
          row[u] = v[u] * at.d_column(b, u / kUnitLanes)[j * kUnitLanes + u % kUnitLanes];
        }
      }
      const T* const part = Arrays<T>::data(d_v_) + b * units_;
      for (Index u = 0; u < U; ++u) sum[u] += part[u];
    }
  });
}

}  // namespace qkv::layers
