// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_Q8_BLOCKS_H_
#define QKV_TESTS_ATTENTION_Q8_BLOCKS_H_

#include <qkv/q8.h>
#include <qkv/tensor.h>

namespace qkv::test {

// Converts numbers [..,n] to q8 blocks [..,n/32].
inline Tensor quantized(const ConstView& x) {
  Dims shape = x.shape();
  shape[shape.rank() - 1] /= BlockQ8::kNumbers;
  Tensor blocks(DType::kQ8, shape);
  quantize_q8(x, blocks);
  return blocks;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_Q8_BLOCKS_H_
