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

// What to compute for each row: name one buffer or both.
struct CrossEntropyOutputs {
  View losses{};             // [N]: with smoothed labels
  View log_probabilities{};  // [N]: log p of the target, without smoothing
};

// The cross-entropy of softmax(x_n) with the label t_n, smoothed by e (Szegedy et al. 2016, sec. 7;
// PyTorch's nn.CrossEntropyLoss with reduction="none"):
//   loss_n = -(1 - e) w_t log p_nt - (e/V) sum_v w_v log p_nv,
//   log p_nv = x_nv - log sum_u exp(x_nu), with the classes' weights w, 1 unless given.
// Each row is computed independently: neither the others nor threads change its bits. A row of
// logits that holds NaN or +inf has loss NaN and gradient NaN; -inf is a probability of 0.
class QKV_API CrossEntropy {
 public:
  // What the backward pass needs. The logits are the caller's and must not change until
  // then. Reusable; memory is kept if sizes are the same.
  struct Saved {
    ConstView logits{};
    Tensor targets{};               // [N] int64, copied
    Tensor max{};                   // [N]: the largest logit
    Tensor sum{};                   // [N]: of exp(x_nv - max_n)
    std::optional<Index> ignore{};  // of the layer that wrote this
  };

  // Rows whose target is `ignore` (PyTorch's ignore_index), which need not be a class, have
  // loss, log-probability and gradient 0 whatever their logits: padding. Throws Error if
  // label_smoothing is not in [0,1), or a weight is not finite.
  // class_weights: [V] real numbers, copied; a class of weight 0 adds nothing, whatever its logit.
  explicit CrossEntropy(double label_smoothing = 0, std::optional<Index> ignore = std::nullopt,
                        const ConstView& class_weights = {});
  double label_smoothing() const noexcept { return label_smoothing_; }
  std::optional<Index> ignore() const noexcept { return ignore_; }
  const Tensor& class_weights() const noexcept { return class_weights_; }  // float64

  // logits [N,V], V >= 1, of any strides, float32 or float64; outputs of the same dtype; targets
  // [N], int32 or int64 in 0..V-1 or `ignore`. Throws Error before touching an output; for a
  // target outside it names position and value.
  void forward(const ConstView& logits, const ConstView& targets, Saved& saved,
               const CrossEntropyOutputs& outputs) const {
    Context context;
    forward(logits, targets, saved, outputs, context);
  }
  void forward(const ConstView& logits, const ConstView& targets, Saved& saved,
               const CrossEntropyOutputs& outputs, Context& context) const;
  // dlosses [N], of any strides (0: one number for all rows); dlogits [N,V]:
  //   dx_nv = dloss_n ((1 - e) w_t (p_nv - [v = t_n]) + (e/V) (p_nv sum_u w_u - w_v)).
  // dlogits may be the logits themselves (same memory and strides) with Write::kOverwrite, which
  // destroys them.
  void backward(const Saved& saved, const ConstView& dlosses, const View& dlogits,
                Write write = Write::kOverwrite) const {
    Context context;
    backward(saved, dlosses, dlogits, write, context);
  }
  void backward(const Saved& saved, const ConstView& dlosses, const View& dlogits, Write write,
                Context& context) const;
  // Both at once, for the sum of the losses: the bits of forward(), then of backward() with
  // dlosses 1 into the logits. Each exponential is computed once.
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
