// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_

#include <cstdint>

#include "cuda/device/arguments.h"

namespace qkv::cuda {

// The projections of q or of k, float32 [entries, heads, quads, rows, 4]: rows of all sequences,
// units in quads, which are filled up with zeros.
struct Projections {
  float* data = nullptr;
  int heads = 0;
  int rows = 0;
  int row_blocks = 0;  // of ProjectionShape::kRows rows
};

// A call with an additive score. Arrays of numbers are float32, but for the options'.
struct AdditiveArguments {
  ForwardArguments call;
  DeviceArray wq, wk;  // rows: units, columns: channels
  DeviceArray b, v;    // columns: units; b is absent if its data is null
  int Dq = 0;
  int U = 0;
  int quads = 0;  // of units
  Projections left, right;
  std::int64_t left_blocks = 0;  // of the kernel that projects: the first ones take q, the others k
  int unit_blocks = 0;           // of ProjectionShape::kUnits units
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_
