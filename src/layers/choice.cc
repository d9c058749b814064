// SPDX-License-Identifier: Apache-2.0
#include "layers/choice.h"

#include "dense/target_in_use.h"
#include "reference/choice.h"

namespace qkv::layers {

template <class T>
kernels::ChoiceKernels<T> choice_kernels_in_use(const Context& context, std::string_view function) {
  const std::optional<kernels::Target> target = dense::target_of_call(context, function);
  if (target) return kernels::choice_kernels<T>(*target);
  return {&reference::largest<T>, &reference::sum_of_exponentials<T>, &reference::first_from<T>};
}
template QKV_API kernels::ChoiceKernels<float> choice_kernels_in_use(const Context&,
                                                                     std::string_view);
template QKV_API kernels::ChoiceKernels<double> choice_kernels_in_use(const Context&,
                                                                      std::string_view);

}  // namespace qkv::layers
