// SPDX-License-Identifier: Apache-2.0
#include "layer_parameters.h"

#include <cstddef>

#include <nanobind/ndarray.h>

#include <qkv/error.h>
#include <qkv/tensor.h>

#include "arrays.h"

namespace qkv::python {
namespace {

nb::object array_over(const View& view, const nb::object& owner) {
  std::vector<std::size_t> sizes;
  for (const Index size : view.shape()) sizes.push_back(static_cast<std::size_t>(size));
  // Parameters are float32 or float64, in C order.
  const nb::dlpack::dtype dtype =
      view.dtype() == DType::kFloat64 ? nb::dtype<double>() : nb::dtype<float>();
  const nb::ndarray<nb::numpy> array(view.data(), sizes.size(), sizes.data(), owner, nullptr, dtype,
                                     nb::device::cpu::value);
  return nb::cast(array);
}

const NamedParameter* find(const ParameterList& list, nb::handle name) {
  for (const NamedParameter& parameter : list) {
    if (nb::isinstance<nb::str>(name) && name.equal(nb::str(parameter.name.c_str()))) {
      return &parameter;
    }
  }
  return nullptr;
}

// A copy of an array, in the parameter's dtype. The array itself may be a parameter of the layer.
Tensor converted(const Name& name, nb::handle value, const View& target) {
  const Array array = array_of(value, name);
  if (!array.view.given()) throw_value_error(name, "must be given, got None");
  if (!is_real(array.view.dtype())) {
    throw_type_error(name, "must be of a real type, got " + qkv::describe(array.view));
  }
  if (!(array.view.shape() == target.shape())) {
    throw_value_error(name, "must have the shape " + to_string(target.shape()) + ", got " +
                                qkv::describe(array.view));
  }
  return convert(array.view, target.dtype());
}

}  // namespace

nb::dict arrays_of(const ParameterList& list, const std::shared_ptr<void>& owner) {
  using Owner = std::shared_ptr<void>;
  const nb::capsule capsule(new Owner(owner),
                            [](void* p) noexcept { delete static_cast<Owner*>(p); });
  nb::dict arrays;
  for (const NamedParameter& parameter : list) {
    arrays[parameter.name.c_str()] = array_over(parameter.view, capsule);
  }
  return arrays;
}

void assign(const char* function, const ParameterList& list, const nb::dict& values) {
  for (const auto& [name, value] : values) {
    if (find(list, name) != nullptr) continue;
    throw_value_error({function, "values"},
                      "may have the names of parameters, got " + describe(name));
  }
  std::vector<Tensor> copies;
  for (const NamedParameter& parameter : list) {
    const char* const name = parameter.name.c_str();
    if (!values.contains(name)) throw_value_error({function, name}, "is missing");
    const nb::object value = values[name];
    copies.push_back(converted({function, name}, value, parameter.view));
  }
  for (std::size_t n = 0; n < list.size(); ++n) copy(copies[n], list[n].view);
}

}  // namespace qkv::python
