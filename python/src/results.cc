// SPDX-License-Identifier: Apache-2.0
#include "results.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <qkv/error.h>
#include <qkv/tensor.h>

#include "dlpack.h"
#include "numpy.h"
#include "torch_tensor.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

nb::object from_dlpack_of(nb::handle like) {
  if (nb::hasattr(like, "__array_namespace__")) {
    return like.attr("__array_namespace__")().attr("from_dlpack");
  }
  // Looks for the package of the class of `like`, then for those of its base classes.
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(like.ptr())));
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  for (const nb::handle base : nb::tuple(type.attr("__mro__"))) {
    const std::string module = nb::cast<std::string>(nb::str(base.attr("__module__")));
    const nb::object package = modules.attr("get")(module.substr(0, module.find('.')));
    if (!package.is_none() && nb::hasattr(package, "from_dlpack")) {
      return package.attr("from_dlpack");
    }
  }
  throw nb::type_error(("qkv: no from_dlpack is known that makes arrays like " +
                        nb::cast<std::string>(nb::repr(type)))
                           .c_str());
}

}  // namespace

ResultMaker::ResultMaker(nb::handle like) : from_dlpack_(nb::none()) {
  if (numpy().is_array(like)) return;
  exchange_ = tensor_class_of(like).exchange;
  if (exchange_ == nullptr && nb::hasattr(like, "__dlpack__")) from_dlpack_ = from_dlpack_of(like);
}

ResultMaker ResultMaker::on_device(nb::object make) {
  ResultMaker maker;
  maker.make_ = std::move(make);
  maker.from_dlpack_ = nb::none();
  return maker;
}

nb::object ResultMaker::make(DType dtype, const Dims& shape, View& view) const {
  if (make_.is_valid()) {
    nb::list sizes;
    for (const Index size : shape) sizes.append(size);
    const auto [made, address] = nb::cast<std::pair<nb::object, std::uintptr_t>>(
        make_(nb::tuple(sizes), std::string(name_of(dtype))));
    auto* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    view = View(data, dtype, shape, contiguous_strides(shape));
    return made;
  }
  if (exchange_ != nullptr) return tensor_by(*exchange_, dtype, shape, view);
  if (from_dlpack_.is_none()) return numpy().empty(dtype, shape, view);
  auto tensor = std::make_unique<Tensor>(dtype, shape);
  view = tensor->view();
  std::vector<std::size_t> sizes;
  for (const Index size : shape) sizes.push_back(static_cast<std::size_t>(size));
  void* const data = view.data();
  const nb::capsule owner(tensor.release(),
                          [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  const nb::ndarray<nb::array_api> array(data, sizes.size(), sizes.data(), owner, nullptr,
                                         dlpack_of(dtype), nb::device::cpu::value);
  return nb::cast(array);
}

nb::object ResultMaker::finish(const nb::object& made) const {
  return from_dlpack_.is_none() || made.is_none() ? made : nb::object(from_dlpack_(made));
}

nb::object array_owning(Tensor tensor) {
  auto held = std::make_unique<Tensor>(std::move(tensor));
  std::vector<std::size_t> sizes;
  for (const Index size : held->shape()) sizes.push_back(static_cast<std::size_t>(size));
  void* const data = held->view().data();
  const DType dtype = held->dtype();
  const nb::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  const nb::ndarray<nb::numpy> array(data, sizes.size(), sizes.data(), owner, nullptr,
                                     dlpack_of(dtype), nb::device::cpu::value);
  return nb::cast(array);
}

}  // namespace qkv::python
