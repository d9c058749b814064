// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LINEAR_PRODUCTS_H_
#define QKV_LAYERS_LINEAR_PRODUCTS_H_

#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/layers/parameters.h>

// The products of y = x W^T + b over the last axis: x [..,I], W [O,I], b [O], y [..,O], of any
// strides, float32 or float64, all of one dtype, which the callers have checked. The sums of y and
// dx are multiply-adds (fused on all targets but SSE4) over an ascending index in blocks of
// core::kChannelBlock, each from zero. One task computes an element, so that no bit depends on
// threads; a row of y or dx depends on no other row. `function` is the name of the public function,
// for messages.
namespace qkv::layers {

// The parameters of a layer, or a weight that two layers share and the bias of one of them.
struct LinearPair {
  const Tensor& weight;
  const Tensor& bias;

  LinearPair(const Tensor& w, const Tensor& b) : weight(w), bias(b) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a layer's parameters are such a pair
  LinearPair(const LinearParameters& p) : weight(p.weight), bias(p.bias) {}
};

// Computes y = x W^T + b: the sum over i, then the bias.
void linear_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const View& y, Context& context);

// Computes y = x W^T + b with the weight packed by layers/packed.h.
void packed_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const Tensor& panels, const View& y, Context& context);

// Packs the weight for packed_backward_input.
void pack_backward(std::string_view function, const Tensor& weight, Tensor& panels,
                   Context& context);
// Computes dx = dy W from the packed weight, bit-identical to linear_backward_input.
void packed_backward_input(std::string_view function, const ConstView& dy, const Tensor& panels,
                           const View& dx, Write write, Context& context);

// Computes dx = dy W, summed over o.
void linear_backward_input(std::string_view function, const ConstView& dy, const LinearPair& p,
                           const View& dx, Write write, Context& context);

// Computes dW = dy^T x and db = the sum of dy over rows. Rows are summed ascending in blocks of
// kGradientBlock, each from zero; the blocks are added in ascending order, with Write::kAccumulate
// to the current values. So several calls with whole blocks of the rows give the same bits. Where
// dy is 0 nothing is added, whatever x holds: padding may be NaN. Absent tensors of `gradients` are
// not computed.
void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                LinearParameters& gradients, Write write, Context& context);

// The views to which the gradients of weight [O,I] and bias [O] are written, C-ordered. Each view
// may be absent.
struct LinearGradientViews {
  View weight{};
  View bias{};
};
QKV_API void linear_backward_parameters(std::string_view function, const ConstView& x,
                                        const ConstView& dy, const LinearGradientViews& gradients,
                                        Write write, Context& context);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_LINEAR_PRODUCTS_H_
