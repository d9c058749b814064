// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/forward.h"

// The registers of a multiprocessor serve 256 threads at 255 registers each.
#define QKV_KERNEL(NAME, SHAPE, TILES, EVERY)                                             \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads,                \
                                               256 / qkv::cuda::SHAPE::kThreads)          \
      qkv_forward_##NAME(const __grid_constant__ qkv::cuda::ForwardArguments arguments) { \
    qkv::cuda::forward<qkv::cuda::SHAPE, qkv::cuda::TILES, EVERY>(arguments);             \
  }
QKV_FOR_EACH_EVERY_FORWARD(QKV_KERNEL)
