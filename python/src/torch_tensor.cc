// SPDX-License-Identifier: Apache-2.0
#include "torch_tensor.h"

#include <string>
#include <vector>

#include "dlpack.h"
#include "view_parts.h"

namespace qkv::python {
namespace {

// An interned name; callers make it once, which matters for small calls.
PyObject* name_of_attribute(const char* name) { return PyUnicode_InternFromString(name); }

nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) nb::raise_python_error();
  return nb::steal(value);
}

// References to the PyTorch objects that the bindings use, looked up once the program has imported
// torch, which is never imported here. The references are never released; see Numpy.
class Torch {
 public:
  explicit Torch(nb::handle torch)
      : tensor_(nb::object(torch.attr("Tensor")).release()),
        function_(nb::object(tensor_.attr("__torch_function__").attr("__func__")).release()),
        // Parameter has its own __torch_function__, but overrides no functions with it.
        no_function_(
            nb::object(torch.attr("nn").attr("Parameter").attr("__torch_function__")).release()),
        no_dispatch_(nb::object(tensor_.attr("__torch_dispatch__")).release()),
        dlpack_(nb::object(tensor_.attr("__dlpack__")).release()),
        forward_ad_(nb::object(torch.attr("autograd").attr("forward_ad")).release()),
        bool_(nb::object(torch.attr("bool")).release()),
        uint8_(nb::object(torch.attr("uint8")).release()) {}

  bool is_tensor_class(nb::handle type) const {
    return PyObject_IsSubclass(type.ptr(), tensor_.ptr()) == 1;
  }
  bool is_base(nb::handle type) const { return type.is(tensor_); }
  bool is_plain(nb::handle type) const {
    const nb::object function = type.attr("__torch_function__");
    const bool own_function =
        !function.is(no_function_) &&
        !(nb::hasattr(function, "__func__") && nb::object(function.attr("__func__")).is(function_));
    return !own_function && nb::object(type.attr("__torch_dispatch__")).is(no_dispatch_);
  }
  const ExchangeApi* exchange(nb::handle type) const {
    constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
    if (!nb::hasattr(type, kAttribute) || !nb::object(type.attr("__dlpack__")).is(dlpack_)) {
      return nullptr;
    }
    return exchange_api_of(type.attr(kAttribute));
  }
  bool has_tangents() const {
    static PyObject* const kLevel = name_of_attribute("_current_level");
    const nb::object level = attribute(forward_ad_, kLevel);
    return PyLong_AsLong(level.ptr()) >= 0;
  }
  bool has_tangent(nb::handle tensor) const {
    return has_tangents() && !forward_ad_.attr("unpack_dual")(tensor).attr("tangent").is_none();
  }
  nb::object bytes_of_booleans(nb::handle tensor) const {
    if (!nb::object(tensor.attr("dtype")).is(bool_)) return {};
    return tensor.attr("view")(uint8_);
  }

 private:
  nb::handle tensor_, function_, no_function_, no_dispatch_, dlpack_, forward_ad_, bool_, uint8_;
};

// The PyTorch objects; null until the program has imported torch.
const Torch* torch() {
  static const Torch* found = nullptr;
  if (found == nullptr) {
    const nb::object modules = nb::module_::import_("sys").attr("modules");
    const nb::object module = modules.attr("get")("torch");
    // While torch is still being imported, no tensors exist.
    if (module.is_none() || !nb::hasattr(module, "autograd") || !nb::hasattr(module, "nn")) {
      return nullptr;
    }
    found = new Torch(module);
  }
  return found;
}

TensorClass look_up(nb::handle type) {
  const Torch* const known = torch();
  if (known == nullptr || !known->is_tensor_class(type)) return {};
  const bool plain = known->is_plain(type);
  return {true, plain, known->is_base(type), plain ? known->exchange(type) : nullptr};
}

}  // namespace

TensorClass tensor_class_of(nb::handle object) {
  // The first tensor classes are cached, and kept alive; a program has two or three of them.
  constexpr std::size_t kMostKnown = 8;
  static auto* const known = new std::vector<std::pair<PyTypeObject*, TensorClass>>;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  for (const auto& [other, facts] : *known) {
    if (other == type) return facts;
  }
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  const TensorClass facts = look_up(handle);
  if (facts.of_torch && known->size() < kMostKnown) {
    known->emplace_back(type, facts);
    handle.inc_ref();
  }
  return facts;
}

void check_plain_tensor(const TensorClass& of, nb::handle object, const Name& name) {
  if (!of.of_torch) return;
  if (!of.plain) {
    const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    const std::string which =
        text_of(type.attr("__module__")) + "." + text_of(type.attr("__name__"));
    const bool causal = which == "torch.nn.attention.bias.CausalBias";
    throw_type_error(
        name, "must be a tensor whose memory is its value, got " + which +
                  ", a class that overrides functions (__torch_function__, __torch_dispatch__)" +
                  (causal ? "; use causal=\"top_left\" or \"bottom_right\" instead"
                          : "; a plain tensor is made by x.as_subclass(torch.Tensor) or the like"));
  }
  if (torch()->has_tangent(object)) {
    throw_type_error(name,
                     "must have no tangent, got a dual tensor of forward-mode differentiation, "
                     "which attention does not have; gradients come from the backward pass");
  }
}

bool has_tangents() { return torch()->has_tangents(); }

bool is_negated(nb::handle tensor) {
  static PyObject* const kIsNeg = name_of_attribute("is_neg");
  PyObject* const self = tensor.ptr();
  const nb::object negated = nb::steal(PyObject_VectorcallMethod(kIsNeg, &self, 1, nullptr));
  if (!negated.is_valid()) nb::raise_python_error();
  return negated.is(Py_True);
}

nb::object with_its_sign(nb::handle tensor) {
  return is_negated(tensor) ? nb::object(tensor.attr("resolve_neg")()) : nb::borrow(tensor);
}

bool requires_grad(nb::handle tensor) {
  static PyObject* const kRequiresGrad = name_of_attribute("requires_grad");
  return attribute(tensor, kRequiresGrad).is(Py_True);
}

nb::object bytes_of_booleans(nb::handle tensor) { return torch()->bytes_of_booleans(tensor); }

}  // namespace qkv::python
