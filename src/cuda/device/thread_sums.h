// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_THREAD_SUMS_H_
#define QKV_CUDA_DEVICE_THREAD_SUMS_H_

#include <cstdint>

#include "cuda/device/arrays.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/device/words.h"

// Sums over the threads of a block of kSummingThreads, in float64.
namespace qkv::cuda {

// Adds the numbers of all threads as a tree (second half to first half, repeatedly). Thread 0
// returns the sum of all, other threads partial sums. Overwrites shared memory from byte 0 on.
QKV_DEVICE double sum_of_threads(double x) {
  const int t = thread_index();
  const auto at = [](int thread) { return static_cast<std::uint32_t>(thread * 8); };
  store_long(at(t), double_to_bits(x));
  QKV_ROLLED
  for (int others = kSummingThreads / 2; others > 0; others /= 2) {
    sync_threads();  // all sums are there
    if (t >= others) continue;
    x += bits_to_double(load_long(at(t + others)));
    store_long(at(t), double_to_bits(x));
  }
  return x;
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_THREAD_SUMS_H_
