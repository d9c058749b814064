// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/bias_gradients.h"
#include "cuda/device/gradients.h"
#include "cuda/device/head_gradients.h"

#define QKV_KERNEL(FUNCTION, NAME, SHAPE, TILES)                                                \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::SHAPE::kThreads, 2)                   \
      qkv_##FUNCTION##_##NAME(const __grid_constant__ qkv::cuda::GradientArguments arguments) { \
    qkv::cuda::FUNCTION<qkv::cuda::SHAPE, qkv::cuda::TILES>(arguments);                         \
  }
#define QKV_KERNELS(NAME, SHAPE, TILES)             \
  QKV_KERNEL(prepare_gradients, NAME, SHAPE, TILES) \
  QKV_KERNEL(query_gradients, NAME, SHAPE, TILES)   \
  QKV_KERNEL(key_gradients, NAME, SHAPE, TILES)     \
  QKV_KERNEL(bias_gradients, NAME, SHAPE, TILES)    \
  QKV_KERNEL(distance_gradients, NAME, SHAPE, TILES)
QKV_FOR_EACH_GRADIENT(QKV_KERNELS)

#define QKV_HEAD_KERNEL(NAME, OF)                                                                 \
  extern "C" __global__ void __launch_bounds__(qkv::cuda::kSummingThreads)                        \
      qkv_head_gradients_##NAME(const __grid_constant__ qkv::cuda::GradientArguments arguments) { \
    qkv::cuda::head_gradients<qkv::cuda::HeadGradient::OF>(arguments);                            \
  }
QKV_HEAD_KERNEL(slopes, kSlopes)
QKV_HEAD_KERNEL(sinks, kSinks)
