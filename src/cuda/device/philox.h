// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_PHILOX_H_
#define QKV_CUDA_DEVICE_PHILOX_H_

#include "cuda/device/words.h"

namespace qkv::cuda {

// Philox4x32-10, as in core/philox.h. Bit n of the result is 1 if Philox's word n is at least
// `threshold`, which means that dropout keeps the weight.
QKV_DEVICE std::uint32_t kept_bits(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                   std::uint32_t c3, std::uint32_t key0, std::uint32_t key1,
                                   std::uint32_t threshold) {
  QKV_UNROLL
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return (c0 >= threshold ? 1U : 0U) | (c1 >= threshold ? 2U : 0U) | (c2 >= threshold ? 4U : 0U) |
         (c3 >= threshold ? 8U : 0U);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_PHILOX_H_
