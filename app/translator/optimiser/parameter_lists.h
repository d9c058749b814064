// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_PARAMETER_LISTS_H_
#define QKV_TRANSLATOR_OPTIMISER_PARAMETER_LISTS_H_

#include <span>
#include <string_view>

#include "translator/optimiser/gradients.h"

// Functions that several operations on lists of parameters share.
namespace qkv::app {

// Throws Error naming `function` and the parameter unless each value and gradient is as
// TrainedParameter requires.
void check_parameters(std::string_view function, std::span<const TrainedParameter> list);

template <class T>
std::span<T> elements(const View& view) {
  return {view.as<T>(), static_cast<std::size_t>(view.element_count())};
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_PARAMETER_LISTS_H_
