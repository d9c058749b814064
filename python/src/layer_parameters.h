// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_PARAMETERS_H_
#define QKV_PYTHON_SRC_LAYER_PARAMETERS_H_

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include <qkv/layers/parameters.h>

// The parameters of a layer, and their gradients, as named arrays of Python.
namespace qkv::python {

struct NamedParameter {
  std::string name;
  View view;
};
using ParameterList = std::vector<NamedParameter>;

// The parameters that a layer (or its gradients) has, in the layer's order.
template <class L>
ParameterList parameter_list(L& layer) {
  ParameterList list;
  for_each_parameter(layer, [&](const auto& p) { list.push_back({p.name, p.value.view()}); });
  return list;
}

// A dict of writable NumPy arrays over the parameters' memory; each array keeps `owner` alive.
nanobind::dict arrays_of(const ParameterList& list, const std::shared_ptr<void>& owner);

// Copies arrays of real numbers, by name, into the parameters. If a name is missing or unknown, or
// an array has another shape or is not real, throws Error and changes no parameter.
void assign(const char* function, const ParameterList& list, const nanobind::dict& values);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_PARAMETERS_H_
