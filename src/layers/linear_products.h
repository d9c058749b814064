// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LINEAR_PRODUCTS_H_
#define QKV_LAYERS_LINEAR_PRODUCTS_H_

#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/layers/parameters.h>

// y = x W^T + b over the last axis: x [..,I], W [O,I], b [O], y [..,O], any strides, float32 or
// float64, all of one dtype; the callers have checked that. Each sum is fused multiply-adds over
// an ascending index in blocks of core::kChannelBlock, each from zero, and each element has one
// owner: bits depend neither on threads nor on the other rows. `function` is the public one, for
// messages.
namespace qkv::layers {

// The parameters of a layer, or a weight that two layers have.
struct LinearPair {
  const Tensor& weight;
  const Tensor& bias;

  LinearPair(const Tensor& w, const Tensor& b) : weight(w), bias(b) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a layer's parameters are such a pair
  LinearPair(const LinearParameters& p) : weight(p.weight), bias(p.bias) {}
};

// y = x W^T + b: the sum over i, then the bias.
void linear_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const View& y, Context& context);

// The same with the weight packed by layers/packed.h.
void packed_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const Tensor& panels, const View& y, Context& context);

// Packs the weight for packed_backward_input.
void pack_backward(std::string_view function, const Tensor& weight, Tensor& panels,
                   Context& context);
// The bits of linear_backward_input.
void packed_backward_input(std::string_view function, const ConstView& dy, const Tensor& panels,
                           const View& dx, Write write, Context& context);

// dx = dy W, summed over o likewise.
void linear_backward_input(std::string_view function, const ConstView& dy, const LinearPair& p,
                           const View& dx, Write write, Context& context);

// dW = dy^T x, db = the sum of dy over rows. Rows are summed ascending in blocks of
// kGradientBlock, each from zero; the blocks are added in ascending order, to what is there if
// accumulated: whole blocks may be given in several calls without changing a bit. Where dy is 0
// nothing is added, whatever x holds: padding may be NaN. Absent tensors of `gradients` are not
// computed.
void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                LinearParameters& gradients, Write write, Context& context);

// The same into views of weight [O,I] and bias [O], C-ordered; each may be absent.
struct LinearGradientViews {
  View weight{};
  View bias{};
};
void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                const LinearGradientViews& gradients, Write write,
                                Context& context);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_LINEAR_PRODUCTS_H_
