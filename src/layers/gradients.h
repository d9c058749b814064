// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRADIENTS_H_
#define QKV_LAYERS_GRADIENTS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/layers/parameters.h>
#include <qkv/tensor.h>

#include "layers/checks.h"

// The gradients of parameters, which have the parameters' names and shapes.
namespace qkv::layers {

// Returns zeros of the tensor's dtype and shape, or an absent tensor for an absent one.
inline Tensor zeros_like(const Tensor& tensor) {
  return tensor.given() ? Tensor(tensor.dtype(), tensor.shape()) : Tensor();
}

// Checks that a requested gradient has the parameter's dtype and shape. Throws Error.
inline void check_gradient(std::string_view function, const std::string& name,
                           const ConstView& gradient, const Tensor& parameter) {
  if (!gradient.given()) return;
  if (!parameter.given()) throw Error(function, name, "is of a parameter that the layer lacks");
  check_same(function, {name, gradient}, parameter.dtype(), parameter.shape());
}

// Checks the requested gradients of all parameters of a layer. Throws Error.
template <class Parameters>
void check_all_gradients(std::string_view function, const Parameters& gradients,
                         const Parameters& parameters) {
  std::vector<const Tensor*> all;
  detail::for_each_entry(parameters, [&](const auto& entry) { all.push_back(&entry.value); });
  std::size_t n = 0;
  detail::for_each_entry(gradients, [&](const auto& entry) {
    check_gradient(function, "gradients." + entry.name, entry.value, *all[n++]);
  });
}

}  // namespace qkv::layers

#endif  // QKV_LAYERS_GRADIENTS_H_
