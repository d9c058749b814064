// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_DLPACK_H_
#define QKV_PYTHON_SRC_DLPACK_H_

#include <cstdint>

#include "arrays.h"

// Arrays of other packages, by DLPack 1 (dmlc.github.io/dlpack): methods of the arrays, or C
// functions that their class offers, which save the interpreter's share of a small call.
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

// DLPackExchangeAPI; the functions give 0, or another number with Python's error set. Those that
// are not called here have no types. What describe() gives is the object's own.
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

// Of the capsule that a class holds; null when it is of a version with other functions.
const ExchangeApi* exchange_api_of(nb::handle capsule);

// A view of what speaks DLPack on the CPU. Throws TypeError for what is elsewhere, or is refused.
Array view_of_dlpack(nb::handle object, const Name& name);

// The element type of a result.
nb::dlpack::dtype dlpack_of(DType dtype);

// A new C-ordered tensor, not filled, of the class whose functions these are, and its memory.
nb::object tensor_by(const ExchangeApi& exchange, DType dtype, const Dims& shape, View& view);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_DLPACK_H_
