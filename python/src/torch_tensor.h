// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_TORCH_TENSOR_H_
#define QKV_PYTHON_SRC_TORCH_TENSOR_H_

#include <optional>

#include "arrays.h"

// PyTorch's tensors: what their memory means, and the short way to it.
namespace qkv::python {

struct ExchangeApi;  // dlpack.h

// Of a class: whether it is a tensor's, and the functions of DLPack that PyTorch (2.10 or newer)
// offers for it.
struct TensorClass {
  bool of_torch = false;
  bool plain = false;  // the memory is the value: PyTorch's functions take it as it is
  const ExchangeApi* exchange = nullptr;
};
TensorClass tensor_class_of(nb::handle object);

// Throws TypeError for a tensor whose memory is not all of its value: of a class with a meaning of
// its own (__torch_function__, __torch_dispatch__), or with a tangent of forward-mode
// differentiation.
void check_plain_tensor(const TensorClass& of, nb::handle object, const Name& name);

// The tensor, or one with the sign in its memory: PyTorch may keep it beside.
nb::object with_its_sign(nb::handle tensor);

bool requires_grad(nb::handle tensor);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_TORCH_TENSOR_H_
