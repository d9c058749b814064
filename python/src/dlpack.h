// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_DLPACK_H_
#define QKV_PYTHON_SRC_DLPACK_H_

#include <cstdint>
#include <optional>

#include "arrays.h"

// Arrays of other packages, by DLPack 1 (dmlc.github.io/dlpack): through methods of the arrays, or
// C functions that their class exports, which avoid the interpreter's overhead in small calls.
namespace qkv::python {

// DLManagedTensorVersioned.
struct ManagedTensor {
  struct {
    std::uint32_t major = 1, minor = 0;
  } version;
  void* context = nullptr;
  void (*deleter)(ManagedTensor*) = nullptr;
  std::uint64_t flags = 0;
  nb::dlpack::dltensor tensor;
};

// DLPackExchangeAPI; the functions return 0, or nonzero with Python's error set. Those not called
// here are untyped. The memory returned by describe() belongs to the object.
struct ExchangeApi {
  struct {
    std::uint32_t major, minor;
  } version;
  const void* previous;
  void (*allocate)();
  void (*from_object)();
  int (*to_object)(ManagedTensor* tensor, void** object);
  int (*describe)(void* object, nb::dlpack::dltensor* tensor);
};

// From the capsule of a class; null if its version has other functions.
const ExchangeApi* exchange_api_of(nb::handle capsule);

// A view of a CPU array that supports DLPack. Throws TypeError for one on another device, or
// rejected.
Array view_of_dlpack(nb::handle object, const Name& name);

// A view of a tensor of torch.Tensor itself that is on the CPU, in its memory as it is, and needs
// no gradient; nothing for every other object. The memory lives as long as the object.
std::optional<ConstView> view_of_bare_tensor(nb::handle object);

// The element type of a result.
nb::dlpack::dtype dlpack_of(DType dtype);

// A new, uninitialised C-ordered tensor of the class that exports these functions, and its memory.
nb::object tensor_by(const ExchangeApi& exchange, DType dtype, const Dims& shape, View& view);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_DLPACK_H_
