// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRU_LOOPS_H_
#define QKV_LAYERS_GRU_LOOPS_H_

#include <qkv/layers/gru.h>

#include "core/stop.h"
#include "dense/panels.h"
#include "kernels/gru_kernels.h"
#include "layers/packed.h"

// One step of a gated recurrent unit on some rows, forward and backward.
namespace qkv::layers {

using dense::RowsOf;

template <class T>
T* row_of(const RowsOf<T>& rows, Index r) {
  return rows.data + r * rows.stride;
}

// The number of rows that go through the steps together: four tiles. Eight tiles are not faster,
// although they read the weights half as often.
inline constexpr Index kGruRows = 24;

// Returns the kernels for the part of a step between its products, or the reference's formulas if
// plain loops are requested.
template <class T>
kernels::GruKernels<T> gru_kernels_in_use(const Context& context, std::string_view function);

// The weights as operands of products.
template <class T>
struct GruWeights {
  Index input = 0;
  Index hidden = 0;
  dense::Panels<T> ih{};  // panels of weight_ih; absent (null) until packed
  dense::Panels<T> hh{};
  dense::Panels<T> ih_transposed{};  // for gradients; if absent, the weights are read
  dense::Panels<T> hh_transposed{};
  const T* weight_ih = nullptr;
  const T* weight_hh = nullptr;
  const T* bias_ih = nullptr;  // may be null
  const T* bias_hh = nullptr;

  explicit GruWeights(const GruParameters& p)
      : input(p.weight_ih.size(1)),
        hidden(p.weight_hh.size(1)),
        weight_ih(p.weight_ih.values<T>().data()),
        weight_hh(p.weight_hh.values<T>().data()),
        bias_ih(p.bias_ih.given() ? p.bias_ih.values<T>().data() : nullptr),
        bias_hh(p.bias_hh.given() ? p.bias_hh.values<T>().data() : nullptr) {}

  Index ih_size() const { return dense::Panels<T>::size(3 * hidden, input); }
  Index hh_size() const { return dense::Panels<T>::size(3 * hidden, hidden); }
  // Packs both weights into memory of ih_size() and hh_size() numbers.
  void pack(runtime::Call& call, const dense::Kernels<T>& by, const GruParameters& p, T* ih_data,
            T* hh_data) {
    layers::pack(call, by, p.weight_ih, ih_data);
    layers::pack(call, by, p.weight_hh, hh_data);
    ih = {3 * hidden, input, ih_data};
    hh = {3 * hidden, hidden, hh_data};
  }
  Index ih_transposed_size() const { return dense::Panels<T>::size(input, 3 * hidden); }
  Index hh_transposed_size() const { return dense::Panels<T>::size(hidden, 3 * hidden); }
};

template <class T>
struct GruLoops {
  dense::Kernels<T> by;
  kernels::GruKernels<T> gates_by;
  core::StopPoint stop;

  // Computes xs = W_ih x + b_ih.
  void project_input(const GruWeights<T>& w, const RowsOf<const T>& x, Index rows,
                     const RowsOf<T>& xs) const {
    dense::multiply(by, x, rows, w.ih, w.bias_ih, xs, stop);
  }
  // Computes hs = W_hh h + b_hh.
  void project_state(const GruWeights<T>& w, const RowsOf<const T>& h, Index rows,
                     const RowsOf<T>& hs) const {
    dense::multiply(by, h, rows, w.hh, w.bias_hh, hs, stop);
  }
  // Computes dh += dhs W_hh, where dhs, the gradient of hs, is parts 0, 1 and 3 of dgates.
  void add_state_gradient(const GruWeights<T>& w, const RowsOf<const T>& dgates, Index rows,
                          const RowsOf<T>& dh) const {
    const Index H = w.hidden;
    const Weight weight{w.hh_transposed, w.weight_hh, H};
    add_gradient(weight, 0, 2 * H, dgates, rows, dh);
    add_gradient(weight, 2 * H, H, {dgates.data + 3 * H, dgates.stride}, rows, dh);
  }
  // Computes dx += dxs W_ih, where dxs, the gradient of xs, is parts 0 to 2 of dgates.
  void add_input_gradient(const GruWeights<T>& w, const RowsOf<const T>& dgates, Index rows,
                          const RowsOf<T>& dx) const {
    add_gradient({w.ih_transposed, w.weight_ih, w.input}, 0, 3 * w.hidden, dgates, rows, dx);
  }

 private:
  struct Weight {
    const dense::Panels<T>& transposed;  // may be absent
    const T* data;                       // [3 hidden,columns]
    Index columns;
  };
  // Adds dgates W to `to`, where W is rows first .. first + gates - 1 of the weight. Results are
  // bit-identical with and without the packed transposed weight.
  void add_gradient(const Weight& w, Index first, Index gates, const RowsOf<const T>& dgates,
                    Index rows, const RowsOf<T>& to) const {
    if (w.transposed.data != nullptr) {
      dense::add_multiply<T>(by, dgates, rows, gates, w.transposed, first, to, stop);
    } else {
      dense::add_product<T>(by, dgates, rows, gates, {w.data + first * w.columns, w.columns},
                            w.columns, to, stop);
    }
  }
};

// Computes dW and db from rows x [N,input], h [N,hidden] and dgates [N,4*hidden].
void gru_parameter_gradients(std::string_view function, const ConstView& x, const ConstView& h,
                             const ConstView& dgates, GruParameters& gradients, Write write,
                             Context& context);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_GRU_LOOPS_H_
