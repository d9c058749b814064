// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_
#define QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_

#include "cuda/device/arguments.h"

namespace qkv::cuda {

// The argument of the gradient kernels. In `call`, out and lse are what the forward pass has saved,
// and `statistics` is memory for each row, not null.
struct GradientArguments {
  ForwardArguments call;
  DeviceArray dout, dlse;  // absent if data is null, as all that follow
  DeviceArray dq, dk, dv;  // of the type of q
  DeviceArray dbias;       // of the type of bias; stride 0 on axes that the matrices do not have
  DeviceArray dalibi;      // of the type of slopes; entry stride 0 if batch entries share them
  DeviceArray dsinks;      // of the type of sinks
  bool adds = false;       // gradients are added to what is there

  // With dalibi, memory for one term per row, at row_number(); else null.
  float* slope_terms = nullptr;
};

// The argument of the gradient kernels of dot products in float32. Kernels add tiles to q_sums,
// k_sums and v_sums: dq, dk and dv themselves or, with `adds`, memory of their own in C order.
struct FloatGradientArguments {
  GradientArguments gradients;
  DeviceArray q_sums, k_sums, v_sums;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_ARGUMENTS_H_
