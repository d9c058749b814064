// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_DLPACK_H_
#define QKV_PYTHON_SRC_DLPACK_H_

#include <cstdint>
#include <optional>

#include "arrays.h"

// Arrays of other packages, exchanged by DLPack 1 (dmlc.github.io/dlpack): through Python methods
// of the arrays, or through C functions that their class exports, which are faster for small calls.
namespace qkv::python {

// DLManagedTensorVersioned of DLPack.
struct ManagedTensor {
  struct {
    std::uint32_t major = 1, minor = 0;
  } version;
  void* context = nullptr;
  void (*deleter)(ManagedTensor*) = nullptr;
  std::uint64_t flags = 0;
  nb::dlpack::dltensor tensor;
};

// DLPackExchangeAPI of DLPack. The functions return 0, or nonzero with a Python error set.
// Functions that qkv does not call are untyped. The memory that describe() returns belongs to the
// object.
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

// The functions in the capsule that a class exports; null if the major version is not 1.
const ExchangeApi* exchange_api_of(nb::handle capsule);

// A view of a CPU array that supports DLPack. Throws TypeError for an array on another device, or
// one that does not export its memory.
Array view_of_dlpack(nb::handle object, const Name& name);

// A view of a CPU tensor whose class is torch.Tensor itself, without a pending negation and without
// requires_grad; nothing for other objects, or if no view has the dtype, rank or alignment. The
// memory lives as long as the object.
std::optional<ConstView> view_of_bare_tensor(nb::handle object);

// The DLPack element type of a result.
nb::dlpack::dtype dlpack_of(DType dtype);

// Makes an uninitialised C-ordered tensor of the class that exports these functions; `view` gets
// its memory.
nb::object tensor_by(const ExchangeApi& exchange, DType dtype, const Dims& shape, View& view);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_DLPACK_H_
