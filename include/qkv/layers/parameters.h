// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_PARAMETERS_H_
#define QKV_LAYERS_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <qkv/export.h>
#include <qkv/tensor.h>

// The parameters of a layer are a struct of tensors with one function that visits all of them,
//   template <class Self, class Visit>
//   static void list(Self& self, const std::string& prefix, const Visit& visit);
// Everything that iterates over parameters uses this function. The gradients of a layer have the
// same type as the parameters, and so the same order and names.
namespace qkv {

// One entry of a list. AnyTensor is Tensor or const Tensor.
template <class AnyTensor>
struct BasicParameter {
  std::string name;  // the name in PyTorch or in the documents: "fc_q.weight", "W_q"
  AnyTensor& value;
  Index fan_in = 0;  // the number of inputs that one output sums: sets the range of initialise()
};

namespace detail {

// Returns a layer's parameters, or the argument itself if it is not a layer but parameters or
// gradients.
template <class L>
auto& parameters_of(L& layer) {
  if constexpr (requires { layer.parameters(); }) {
    return layer.parameters();
  } else {
    return layer;
  }
}

// Visits the whole list, absent tensors included.
template <class L, class Visit>
void for_each_entry(L& layer, const Visit& visit) {
  auto& parameters = parameters_of(layer);
  std::remove_cvref_t<decltype(parameters)>::list(parameters, "", visit);
}

// The size of an axis; 0 for an absent tensor.
inline Index size_or_zero(const Tensor& tensor, int axis) {
  return tensor.given() ? tensor.size(axis) : 0;
}

QKV_API void initialise(const BasicParameter<Tensor>& parameter, std::uint64_t seed, Index index);

}  // namespace detail

// Calls visit(parameter) once for each parameter that is present, in the order of the list. `layer`
// is a layer, its parameters or its gradients.
//   for_each_parameter(layer, [](const auto& p) { print(p.name, p.value.shape()); });
template <class L, class Visit>
void for_each_parameter(L& layer, Visit&& visit) {
  detail::for_each_entry(layer, [&](const auto& parameter) {
    if (parameter.value.given()) visit(parameter);
  });
}

// Calls visit(parameter, gradient) for each parameter whose gradient is present, as optimisers
// need.
template <class L, class G, class Visit>
void for_each_parameter(L& layer, G& gradients, Visit&& visit) {
  using Gradient = std::conditional_t<std::is_const_v<G>, const Tensor, Tensor>;
  std::vector<Gradient*> values;
  detail::for_each_entry(gradients, [&](const auto& entry) { values.push_back(&entry.value); });
  std::size_t index = 0;
  detail::for_each_entry(layer, [&](const auto& parameter) {
    Gradient& gradient = *values[index++];
    if (parameter.value.given() && gradient.given()) visit(parameter, gradient);
  });
}

// The total number of elements of all parameters.
template <class L>
Index parameter_count(const L& layer) {
  Index count = 0;
  for_each_parameter(layer, [&](const auto& p) { count += p.value.element_count(); });
  return count;
}

// Draws each parameter uniformly from (-b, b), b = 1/sqrt(fan_in), as PyTorch's nn.Linear does for
// weights and biases (He et al. 2015, eq. 15 with a negative slope of sqrt(5)). The numbers are
// Philox4x32-10 of (seed; element, index of the parameter): they are bit-identical on all machines,
// and do not depend on parameters added later; float32 parameters are the rounded float64 ones.
// `first` is the index of the layer's first parameter in its model. Returns the index after that of
// the layer's last parameter. Layers of one shape with equal seed and `first` start equal.
template <class L>
Index initialise(L& layer, std::uint64_t seed, Index first = 0) {
  for_each_parameter(
      layer, [&](const BasicParameter<Tensor>& p) { detail::initialise(p, seed, first++); });
  return first;
}

// The parameters of y = x W^T + b.
struct LinearParameters {
  Tensor weight{};  // [out,in]
  Tensor bias{};    // [out]; may be absent

  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
    const Index fan_in = detail::size_or_zero(self.weight, 1);
    visit(BasicParameter<T>{prefix + "weight", self.weight, fan_in});
    visit(BasicParameter<T>{prefix + "bias", self.bias, fan_in});
  }
};

}  // namespace qkv

#endif  // QKV_LAYERS_PARAMETERS_H_
