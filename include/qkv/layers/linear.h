// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LINEAR_H_
#define QKV_LAYERS_LINEAR_H_

#include <memory>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/layers/parameters.h>

namespace qkv {

// y = x W^T + b over the last axis: x [..,in], W [out,in], b [out], y [..,out], with the names and
// shapes of torch.nn.Linear. Arrays have any strides and rank 2 or more. Sums of y and dx are
// multiply-adds (fused, except on SSE4) over an ascending index in blocks of 64, each from zero.
// The blocks are added in ascending order, then the bias. A row's bits do not depend on the other
// rows. Sums of dW and db over the rows are in blocks of 128.
class QKV_API Linear {
 public:
  using Parameters = LinearParameters;
  // The view is the caller's: the array must not change until the backward pass.
  struct Saved {
    ConstView x{};
  };

  // Parameters are zero until initialised or written. dtype is float32 or float64. Throws Error if
  // a size is below 1.
  Linear(Index in, Index out, bool bias = true, DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  // Throws Error before touching y, which must not overlap x.
  void forward(const ConstView& x, Saved& saved, const View& y) const {
    Context context;
    forward(x, saved, y, context);
  }
  void forward(const ConstView& x, Saved& saved, const View& y, Context& context) const;
  // dx and each tensor of `gradients` may be absent. `write` applies to all of them. Rows whose dy
  // is 0 add nothing to dW, whatever x holds there: padding may be NaN.
  void backward(const Saved& saved, const ConstView& dy, const View& dx, Parameters& gradients,
                Write write = Write::kOverwrite) const {
    Context context;
    backward(saved, dy, dx, gradients, write, context);
  }
  void backward(const Saved& saved, const ConstView& dy, const View& dx, Parameters& gradients,
                Write write, Context& context) const;

 private:
  Parameters parameters_;
};

// A Linear for many calls between which the parameters do not change: its weights are packed once.
// Decoders that compute step by step need it.
class QKV_API PackedLinear {
 public:
  // `parameters` and `context` must outlive the object. Throws Error as Linear does.
  PackedLinear(const LinearParameters& parameters, Context& context);
  // Uses a weight [out,in] that another layer owns; the bias [out] may be absent. The weight, the
  // bias and the context must outlive the object.
  PackedLinear(const Tensor& weight, const Tensor& bias, Context& context);
  // Computes on another context. Both objects share the prepacked weights, so that several threads
  // may compute at the same time, each on a context of its own.
  PackedLinear(const PackedLinear& packed, Context& context);
  ~PackedLinear();
  PackedLinear(PackedLinear&&) noexcept;
  PackedLinear& operator=(PackedLinear&&) noexcept;

  // Writes y, bit-identical to Linear::forward.
  void forward(const ConstView& x, const View& y) const;
  // Computes dx = dy W.
  void backward_input(const ConstView& dy, const View& dx, Write write = Write::kOverwrite) const;
  // Gradients are bit-identical to Linear::backward; dx, d_weight and d_bias may be absent.
  void backward(const ConstView& x, const ConstView& dy, const View& dx, Tensor& d_weight,
                Tensor& d_bias, Write write) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_LINEAR_H_
