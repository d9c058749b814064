// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_CROSS_ENTROPY_H_
#define QKV_LAYERS_CROSS_ENTROPY_H_

#include <optional>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv {

// The results of a forward pass, one number per row. At least one buffer must be set.
struct CrossEntropyOutputs {
  View losses{};             // [N]: the loss, with smoothed labels
  View log_probabilities{};  // [N]: log p of the target, without smoothing
};

// The cross-entropy of softmax(x_n) with the label t_n, smoothed by e (Szegedy et al. 2016, sec. 7;
// PyTorch's nn.CrossEntropyLoss with reduction="none"):
//   loss_n = -(1 - e) w_t log p_nt - (e/V) sum_v w_v log p_nv,
//   log p_nv = x_nv - log sum_u exp(x_nu), with the classes' weights w, 1 unless given.
// Each row is computed independently: its bits depend neither on other rows nor on threads. A row
// of logits that holds NaN or +inf has gradient NaN and, unless w_t and e are both 0, loss NaN.
// A logit of -inf is a probability of 0.
class QKV_API CrossEntropy {
 public:
  // The numbers that the backward pass needs. The logits are the caller's and must not change until
  // the backward pass. A Saved can be used again; its memory is reused if sizes are equal.
  struct Saved {
    ConstView logits{};
    Tensor targets{};               // [N] int64, copied
    Tensor max{};                   // [N]: the largest logit
    Tensor sum{};                   // [N]: the sum over v of exp(x_nv - max_n)
    std::optional<Index> ignore{};  // ignore() of the layer that wrote this
  };

  // Rows whose target is `ignore` (PyTorch's ignore_index) are padding: they have loss,
  // log-probability and gradient 0 whatever their logits. `ignore` need not be a class.
  // class_weights is [V] real numbers, copied; the terms of a class of weight 0 are 0, even if its
  // logit is -inf. Throws Error if label_smoothing is not in [0,1), or a weight is not finite.
  explicit CrossEntropy(double label_smoothing = 0, std::optional<Index> ignore = std::nullopt,
                        const ConstView& class_weights = {});
  double label_smoothing() const noexcept { return label_smoothing_; }
  std::optional<Index> ignore() const noexcept { return ignore_; }
  const Tensor& class_weights() const noexcept { return class_weights_; }  // float64

  // logits [N,V], V >= 1, have any strides and are float32 or float64; the outputs have that dtype.
  // targets [N] are int32 or int64, in 0..V-1 or `ignore`. Throws Error before touching an output;
  // for an invalid target the error gives its position and value.
  void forward(const ConstView& logits, const ConstView& targets, Saved& saved,
               const CrossEntropyOutputs& outputs) const {
    Context context;
    forward(logits, targets, saved, outputs, context);
  }
  void forward(const ConstView& logits, const ConstView& targets, Saved& saved,
               const CrossEntropyOutputs& outputs, Context& context) const;
  // dlosses [N] has any strides (0: one number for all rows); dlogits [N,V] becomes
  //   dx_nv = dloss_n ((1 - e) w_t (p_nv - [v = t_n]) + (e/V) (p_nv sum_u w_u - w_v)).
  // With Write::kOverwrite, dlogits may be the logits themselves (equal memory and strides): the
  // gradients then replace them.
  void backward(const Saved& saved, const ConstView& dlosses, const View& dlogits,
                Write write = Write::kOverwrite) const {
    Context context;
    backward(saved, dlosses, dlogits, write, context);
  }
  void backward(const Saved& saved, const ConstView& dlosses, const View& dlogits, Write write,
                Context& context) const;
  // Computes losses and, for the sum of the losses, gradients, which replace the logits. Results
  // are bit-identical to forward() followed by backward() with dlosses 1. Each exponential is
  // computed once.
  void forward_and_backward(const View& logits, const ConstView& targets,
                            const CrossEntropyOutputs& outputs) const {
    Context context;
    forward_and_backward(logits, targets, outputs, context);
  }
  void forward_and_backward(const View& logits, const ConstView& targets,
                            const CrossEntropyOutputs& outputs, Context& context) const;

 private:
  void prepare(std::string_view function, const ConstView& logits, const ConstView& targets,
               Saved& saved, const CrossEntropyOutputs& outputs) const;

  double label_smoothing_ = 0;
  std::optional<Index> ignore_;
  Tensor class_weights_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_CROSS_ENTROPY_H_
