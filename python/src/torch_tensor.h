// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_TORCH_TENSOR_H_
#define QKV_PYTHON_SRC_TORCH_TENSOR_H_

#include <nanobind/nanobind.h>

#include "argument_name.h"

// PyTorch tensors: whether their memory is their value, and the fast access to it.
namespace qkv::python {

namespace nb = nanobind;

struct ExchangeApi;  // dlpack.h

// Facts about the class of an object.
struct TensorClass {
  bool of_torch = false;  // a class of PyTorch tensors
  bool plain = false;     // the memory is the value: the class does not override functions
  bool is_base = false;   // torch.Tensor itself
  // The DLPack functions that PyTorch 2.10 or newer exports for a plain class, else null.
  const ExchangeApi* exchange = nullptr;
};
TensorClass tensor_class_of(nb::handle object);

// Throws TypeError for a tensor whose memory is not its whole value: one of a class that overrides
// functions (__torch_function__, __torch_dispatch__), or with a tangent of forward-mode
// differentiation.
void check_plain_tensor(const TensorClass& of, nb::handle object, const Name& name);

// Whether forward-mode differentiation is active, so that tensors may have tangents.
bool has_tangents();

// Whether a tensor has a pending negation: its memory has the negated values.
bool is_negated(nb::handle tensor);
// The tensor, or a copy in which a pending negation is applied to the memory.
nb::object with_its_sign(nb::handle tensor);

bool requires_grad(nb::handle tensor);

// For a tensor of booleans, a tensor of bytes over its memory, because the __dlpack__ of older
// versions of PyTorch does not export booleans. An empty object for other tensors.
nb::object bytes_of_booleans(nb::handle tensor);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_TORCH_TENSOR_H_
