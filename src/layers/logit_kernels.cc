// SPDX-License-Identifier: Apache-2.0
#include "layers/logit_kernels.h"

#include "dense/target_in_use.h"
#include "reference/logits.h"

namespace qkv::layers {

template <class T>
kernels::LogitKernels<T> logit_kernels_in_use(const Context& context, std::string_view function) {
  const std::optional<kernels::Target> target = dense::target_of_call(context, function);
  if (target) return kernels::logit_kernels<T>(*target);
  return {&reference::largest<T>, &reference::sum_of_exponentials<T>, &reference::first_from<T>};
}
template QKV_API kernels::LogitKernels<float> logit_kernels_in_use(const Context&,
                                                                   std::string_view);
template QKV_API kernels::LogitKernels<double> logit_kernels_in_use(const Context&,
                                                                    std::string_view);

}  // namespace qkv::layers
