// SPDX-License-Identifier: Apache-2.0
#include "layers/gru_loops.h"

#include "layers/linear_products.h"
#include "reference/gru.h"

namespace qkv::layers {
namespace {

// Returns rows first .. first + count - 1 of a tensor, or an absent view of an absent tensor.
View rows_of(Tensor& tensor, Index first, Index count) {
  return tensor.given() ? slice(tensor, 0, first, first + count) : View();
}

}  // namespace

template <class T>
kernels::GruKernels<T> gru_kernels_in_use(const Context& context, std::string_view function) {
  const std::optional<kernels::Target> target = dense::target_of_call(context, function);
  if (target) return kernels::gru_kernels<T>(*target);
  return {&reference::gru_forward<T>, &reference::gru_backward<T>};
}
template kernels::GruKernels<float> gru_kernels_in_use(const Context&, std::string_view);
template kernels::GruKernels<double> gru_kernels_in_use(const Context&, std::string_view);

void gru_parameter_gradients(std::string_view function, const ConstView& x, const ConstView& h,
                             const ConstView& dgates, GruParameters& gradients, Write write,
                             Context& context) {
  const Index hidden = h.size(-1);
  const auto add = [&](const ConstView& input, Index first_gate, Index gates, const View& weight,
                       const View& bias) {
    linear_backward_parameters(function, input,
                               slice(dgates, 1, first_gate * hidden, (first_gate + gates) * hidden),
                               LinearGradientViews{weight, bias}, write, context);
  };
  add(x, 0, 3, gradients.weight_ih, gradients.bias_ih);
  // Part 3 of dgates is the gradient of W_hn h + b_hn. Part 2 is the gradient of gate n's sum, in
  // which r multiplies W_hn h + b_hn.
  add(h, 0, 2, rows_of(gradients.weight_hh, 0, 2 * hidden),
      rows_of(gradients.bias_hh, 0, 2 * hidden));
  add(h, 3, 1, rows_of(gradients.weight_hh, 2 * hidden, hidden),
      rows_of(gradients.bias_hh, 2 * hidden, hidden));
}

}  // namespace qkv::layers
