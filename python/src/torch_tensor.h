// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_TORCH_TENSOR_H_
#define QKV_PYTHON_SRC_TORCH_TENSOR_H_

#include <optional>

#include "arrays.h"

// PyTorch tensors: what their memory means, and the fast way to it.
namespace qkv::python {

struct ExchangeApi;  // dlpack.h

// For a class: whether it is a tensor class, and the DLPack functions that PyTorch (2.10 or newer)
// exports for it.
struct TensorClass {
  bool of_torch = false;
  bool plain = false;    // the memory is the value: PyTorch's functions take it unchanged
  bool is_base = false;  // torch.Tensor itself, whose results are of no other class
  const ExchangeApi* exchange = nullptr;
};
TensorClass tensor_class_of(nb::handle object);

// Throws TypeError for a tensor whose memory is not its whole value: of a class that gives it
// another meaning (__torch_function__, __torch_dispatch__), or with a forward-mode tangent.
void check_plain_tensor(const TensorClass& of, nb::handle object, const Name& name);

// Whether forward-mode differentiation is at work: tensors may have tangents.
bool has_tangents();

// Whether PyTorch stores the sign separately: the memory has the opposite one.
bool is_negated(nb::handle tensor);
// The tensor, or a copy with its sign applied to the memory.
nb::object with_its_sign(nb::handle tensor);

bool requires_grad(nb::handle tensor);

// For a tensor of booleans the same memory as bytes: PyTorch's __dlpack__ did not export booleans
// at first. An empty object for other tensors.
nb::object bytes_of_booleans(nb::handle tensor);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_TORCH_TENSOR_H_
