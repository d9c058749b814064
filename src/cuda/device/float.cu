// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/float_forward.h"
#include "cuda/device/float_gradients.h"

#define QKV_KERNEL(NAME, SHAPE)                                                                 \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, 2)                   \
      qkv_float_forward_##NAME(const __grid_constant__ qkv::cuda::ForwardArguments arguments) { \
    qkv::cuda::float_forward<qkv::cuda::SHAPE>(arguments);                                      \
  }
QKV_FOR_EACH_FLOAT_FORWARD(QKV_KERNEL)

#define QKV_GRADIENT(NAME)                                                                 \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::FloatGradientShape::kThreads, 2) \
      qkv_float_gradients_##NAME(                                                          \
          const __grid_constant__ qkv::cuda::FloatGradientArguments arguments) {           \
    qkv::cuda::float_gradients_##NAME(arguments);                                          \
  }
QKV_FOR_EACH_FLOAT_GRADIENT(QKV_GRADIENT)
