// SPDX-License-Identifier: Apache-2.0
#include "layers/choice.h"

#include "backend/cpu/implementations.h"
#include "kernels/target.h"
#include "reference/choice.h"

namespace qkv::layers {

template <class T>
kernels::ChoiceKernels<T> choice_kernels_in_use(const Context& context, std::string_view function) {
  const std::string_view target = attn::target_of_layers(context.forced_path(), function);
  for (const kernels::Target candidate : kernels::kTargets) {
    if (kernels::name_of(candidate) == target) return kernels::choice_kernels<T>(candidate);
  }
  return {&reference::largest<T>, &reference::sum_of_exponentials<T>, &reference::first_from<T>};
}
template QKV_API kernels::ChoiceKernels<float> choice_kernels_in_use(const Context&,
                                                                     std::string_view);
template QKV_API kernels::ChoiceKernels<double> choice_kernels_in_use(const Context&,
                                                                      std::string_view);

}  // namespace qkv::layers
