// SPDX-License-Identifier: Apache-2.0
// error: to copy: copy(from, to), or to = contiguous(from)
// lines: 11
#include <qkv/tensor.h>

void f(const qkv::Tensor& dq, qkv::Tensor& dk) { dk = dq; }
