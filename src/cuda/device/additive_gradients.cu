// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/additive_gradients.h"
#include "cuda/device/additive_products.h"
#include "cuda/device/additive_project.h"

#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                                             \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, BLOCKS)  \
      qkv_additive_gradients_##NAME(                                                \
          const __grid_constant__ qkv::cuda::AdditiveGradientArguments arguments) { \
    qkv::cuda::additive_gradients_##NAME(arguments);                                \
  }
QKV_FOR_EACH_ADDITIVE_GRADIENT(QKV_KERNEL)
