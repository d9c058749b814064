// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/additive.h"

extern "C" __global__ void __launch_bounds__(qkv::cuda::ProjectionShape::kThreads)
    qkv_additive_project(const __grid_constant__ qkv::cuda::AdditiveArguments arguments) {
  qkv::cuda::project(arguments);
}

#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                                                     \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, BLOCKS)          \
      qkv_additive_##NAME(const __grid_constant__ qkv::cuda::AdditiveArguments arguments) { \
    qkv::cuda::additive<qkv::cuda::SHAPE>(arguments);                                       \
  }
QKV_FOR_EACH_ADDITIVE(QKV_KERNEL)
