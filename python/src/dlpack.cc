// SPDX-License-Identifier: Apache-2.0
#include "dlpack.h"

#include <memory>
#include <optional>
#include <vector>

#include <qkv/tensor.h>

#include "torch_tensor.h"
#include "view_parts.h"

namespace qkv::python {
namespace {

DType dtype_of_dlpack(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1 || dtype.bits % 8 != 0) return DType::kNone;
  const std::size_t bytes = dtype.bits / 8;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      if (bytes == 2) return DType::kFloat16;
      return bytes == 4 ? DType::kFloat32 : bytes == 8 ? DType::kFloat64 : DType::kNone;
    case Code::Bfloat:
      return bytes == 2 ? DType::kBFloat16 : DType::kNone;
    case Code::Bool:
      return bytes == 1 ? DType::kBool : DType::kNone;
    case Code::Int:
      return signed_integer(bytes);
    case Code::UInt:
      return unsigned_integer(bytes);
    case Code::Complex:
      return bytes == 16 ? DType::kComplex128 : DType::kNone;
    default:
      return DType::kNone;
  }
}

constexpr int kCpu = 1;   // kDLCPU
constexpr int kCuda = 2;  // kDLCUDA

constexpr nb::dlpack::dtype kBooleans = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bool), 8,
                                         1};

// A hint for tensors that require gradients: PyTorch's error advises to detach them, which would
// lose the gradient.
const char* autograd_hint(nb::handle object) {
  const bool asks =
      nb::hasattr(object, "requires_grad") && nb::object(object.attr("requires_grad")).is(Py_True);
  return asks ? "; under autograd call qkv.torch.attention" : "";
}

bool is_nested(nb::handle object) {
  return nb::hasattr(object, "is_nested") && nb::object(object.attr("is_nested")).is(Py_True);
}

// Calls a DLPack method of an array and returns its result. If the method refuses the array, as
// PyTorch's does for a tensor that requires gradients, throws an error that names the argument;
// other errors propagate.
nb::object asked(nb::handle object, const char* method, const Name& name) {
  try {
    return object.attr(method)();
  } catch (nb::python_error& error) {
    for (PyObject* const kind :
         {PyExc_BufferError, PyExc_ValueError, PyExc_TypeError, PyExc_RuntimeError}) {
      if (!error.matches(kind)) continue;
      if (is_nested(object)) {
        throw_type_error(name,
                         "must have one shape, got a nested tensor; qkv.torch's "
                         "scaled_dot_product_attention takes jagged ones");
      }
      throw_type_error(name, "must be an array on the CPU that exports its memory, got " +
                                 describe(object) + " (" + text_of(error.value()) + ")" +
                                 autograd_hint(object));
    }
    throw;
  }
}

long device_type_of(nb::handle object, const Name& name) {
  const nb::object device = asked(object, "__dlpack_device__", name);
  if (PyTuple_Check(device.ptr()) && NB_TUPLE_GET_SIZE(device.ptr()) == 2) {
    const nb::handle type = NB_TUPLE_GET_ITEM(device.ptr(), 0);
    if (PyIndex_Check(type.ptr()) != 0) {
      int overflow = 0;  // on overflow the number is -1, which is no device type
      const long number = PyLong_AsLongAndOverflow(type.ptr(), &overflow);
      if (number == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
      return number;
    }
  }
  throw_type_error(name, "must give a pair of integers as its DLPack device, got " +
                             text_of(device) + " from " + describe(object));
}

ConstView view_of(const nb::dlpack::dltensor& tensor, nb::handle object, const Name& name) {
  check_rank(name, tensor.ndim);
  const DType dtype = dtype_of_dlpack(tensor.dtype);
  if (dtype == DType::kNone) refuse_dtype(name, object);
  const auto layout = layout_of(tensor.ndim, tensor.shape, tensor.strides, Index{1});
  const void* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  if (!is_aligned(data, dtype)) {
    throw_value_error(name, "must be aligned for its elements, got " + describe(object));
  }
  return {data, dtype, layout->shape, layout->strides};
}

// A view of a CPU tensor, read by the C functions of its class. Returns nothing for a tensor that
// requires gradients or is on another device; the Python methods then report the error.
std::optional<Array> view_by(const ExchangeApi& exchange, nb::handle object, const Name& name) {
  if (requires_grad(object)) return std::nullopt;
  const nb::object plain = with_its_sign(object);
  nb::dlpack::dltensor tensor;
  if (exchange.describe(plain.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (tensor.device.device_type != kCpu) return std::nullopt;
  return Array{view_of(tensor, object, name), plain, {}};
}

}  // namespace

const ExchangeApi* exchange_api_of(nb::handle capsule) {
  const auto* const api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  return api != nullptr && api->version.major == 1 ? api : nullptr;
}

Array view_of_dlpack(nb::handle object, const Name& name) {
  const TensorClass of = tensor_class_of(object);
  check_plain_tensor(of, object, name);
  if (of.exchange != nullptr) {
    if (const auto array = view_by(*of.exchange, object, name)) return *array;
  }
  const long device_type = device_type_of(object, name);
  if (device_type != kCpu) {
    std::string where = "DLPack device type " + std::to_string(device_type);
    if (nb::hasattr(object, "device")) where = text_of(object.attr("device"));
    throw_type_error(name, "must be an array on the CPU, got " + describe(object) + " on " + where +
                               (device_type == kCuda ? gpu_hint(name) : ""));
  }
  const nb::object plain = of.of_torch ? with_its_sign(object) : nb::borrow(object);
  const nb::object bytes = of.of_torch ? bytes_of_booleans(plain) : nb::object();
  const nb::object capsule = asked(bytes.is_valid() ? bytes : plain, "__dlpack__", name);
  nb::ndarray<nb::ro> tensor;
  // The device that counts is the exported tensor's, which may differ from __dlpack_device__.
  if (!nb::try_cast(capsule, tensor) || tensor.device_type() != kCpu) {
    throw_type_error(name, "must give a DLPack tensor of the CPU, got " + describe(object));
  }
  const nb::dlpack::dltensor described{.data = const_cast<void*>(tensor.data()),
                                       .device = {kCpu, 0},
                                       .ndim = static_cast<std::int32_t>(tensor.ndim()),
                                       .dtype = bytes.is_valid() ? kBooleans : tensor.dtype(),
                                       .shape = const_cast<std::int64_t*>(tensor.shape_ptr()),
                                       .strides = const_cast<std::int64_t*>(tensor.stride_ptr()),
                                       .byte_offset = 0};
  return {view_of(described, object, name), plain, tensor};
}

std::optional<ConstView> view_of_bare_tensor(nb::handle object) {
  const TensorClass of = tensor_class_of(object);
  if (!of.is_base || of.exchange == nullptr || requires_grad(object)) return std::nullopt;
  nb::dlpack::dltensor tensor;
  if (of.exchange->describe(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const DType dtype = dtype_of_dlpack(tensor.dtype);
  const bool is_known = dtype != DType::kNone && tensor.ndim <= kMaxRank;
  if (!is_known || tensor.device.device_type != kCpu || is_negated(object)) return std::nullopt;
  const auto layout = layout_of(tensor.ndim, tensor.shape, tensor.strides, Index{1});
  const void* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  if (!is_aligned(data, dtype)) return std::nullopt;
  return ConstView(data, dtype, layout->shape, layout->strides);
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  const auto type = [&](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  if (dtype == DType::kBFloat16) return type(nb::dlpack::dtype_code::Bfloat);
  if (dtype == DType::kComplex128) return type(nb::dlpack::dtype_code::Complex);
  return type(is_real(dtype) ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::Int);
}

nb::object tensor_by(const ExchangeApi& exchange, DType dtype, const Dims& shape, View& view) {
  // Owns the memory of the result, and the DLPack tensor that describes that memory.
  struct Held {
    Tensor tensor;
    std::vector<std::int64_t> dims;
    ManagedTensor managed;
  };
  auto held = std::make_unique<Held>();
  held->tensor = Tensor(dtype, shape);
  const int rank = shape.rank();
  held->dims.assign(shape.begin(), shape.end());
  const Dims strides = contiguous_strides(shape);
  held->dims.insert(held->dims.end(), strides.begin(), strides.end());
  view = held->tensor.view();
  held->managed.context = held.get();
  held->managed.deleter = [](ManagedTensor* self) { delete static_cast<Held*>(self->context); };
  held->managed.tensor = {.data = view.data(),
                          .device = {kCpu, 0},
                          .ndim = rank,
                          .dtype = dlpack_of(dtype),
                          .shape = held->dims.data(),
                          .strides = held->dims.data() + rank,
                          .byte_offset = 0};
  void* object = nullptr;
  if (exchange.to_object(&held->managed, &object) != 0) nb::raise_python_error();
  static_cast<void>(held.release());  // `object` owns it now
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace qkv::python
