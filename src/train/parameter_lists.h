// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRAIN_PARAMETER_LISTS_H_
#define QKV_TRAIN_PARAMETER_LISTS_H_

#include <span>
#include <string_view>

#include "train/gradients.h"

// What the functions on lists of parameters share.
namespace qkv::train {

// Throws Error naming `function` and the parameter unless each has values and a gradient as
// TrainedParameter says.
void check_parameters(std::string_view function, std::span<const app::TrainedParameter> list);

// Calls f(T{}) for the floating-point type behind the dtype, which was checked.
template <class F>
decltype(auto) with_real_type(DType dtype, F&& f) {
  return dtype == DType::kFloat32 ? f(float{}) : f(double{});
}

template <class T>
std::span<T> elements(const View& view) {
  return {view.as<T>(), static_cast<std::size_t>(view.element_count())};
}

}  // namespace qkv::train

#endif  // QKV_TRAIN_PARAMETER_LISTS_H_
