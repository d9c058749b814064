// SPDX-License-Identifier: Apache-2.0
// error: to copy: contiguous(tensor)
// lines: 9
#include <qkv/tensor.h>

qkv::Tensor f(const qkv::Tensor& dq) {
  qkv::Tensor dk(dq);
  return dk;
}
