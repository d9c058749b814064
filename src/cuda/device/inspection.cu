// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/inspection.h"

#define QKV_KERNELS(NAME, SHAPE, TILES)                                                        \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, 2)                  \
      qkv_sum_columns_##NAME(const __grid_constant__ qkv::cuda::ForwardArguments arguments) {  \
    qkv::cuda::sum_columns<qkv::cuda::SHAPE, qkv::cuda::TILES>(arguments);                     \
  }                                                                                            \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, 2)                  \
      qkv_inspect_rows_##NAME(const __grid_constant__ qkv::cuda::ForwardArguments arguments) { \
    qkv::cuda::inspect_rows<qkv::cuda::SHAPE, qkv::cuda::TILES>(arguments);                    \
  }
QKV_FOR_EACH_INSPECTION(QKV_KERNELS)
