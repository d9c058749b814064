// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_
#define QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_

#include "cuda/device/arguments.h"

namespace qkv::cuda {

// The argument of the gradient kernels. In `call`, out and lse are what the forward pass has saved,
// and `statistics` is never null.
struct GradientArguments {
  ForwardArguments call;
  DeviceArray dout, dlse;  // absent if data is null, as all that follow
  DeviceArray dq, dk, dv;  // of the type of q
  DeviceArray dbias;       // of the type of bias; stride 0 on axes along which bias is broadcast
  DeviceArray dalibi;      // of the type of alibi; entry stride 0 if batch entries share slopes
  DeviceArray dsinks;      // of the type of sinks
  bool adds = false;       // whether gradients are added to what the arrays hold

  // With dalibi, memory for one term per row, indexed by row_number(); else null.
  float* slope_terms = nullptr;
};

// The argument of the gradient kernels of dot products in float32. The kernels sum in q_sums,
// k_sums and v_sums, which are dq, dk and dv themselves or, with `adds`, scratch arrays in C order.
struct FloatGradientArguments {
  GradientArguments gradients;
  DeviceArray q_sums, k_sums, v_sums;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_
