// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_

#include <cstdint>

#include "cuda/device/arguments.h"

namespace qkv::cuda {

// The projections of q or of k, float32 [entries, heads, quads, rows, 4]: rows of all sequences,
// units in quads, the last one padded with zeros.
struct Projections {
  float* data = nullptr;
  int heads = 0;
  int rows = 0;
  int row_blocks = 0;  // of ProjectionShape::kRows rows
};

// A call with an additive score. Arrays are float32, except those of options.
struct AdditiveArguments {
  ForwardArguments call;
  DeviceArray wq, wk;  // rows: units, columns: channels
  DeviceArray b, v;    // columns: units; b is absent if its data is null
  int Dq = 0;
  int U = 0;
  int quads = 0;  // of units
  Projections left, right;
  std::int64_t left_blocks = 0;  // blocks that project q; those that project k follow
  int unit_blocks = 0;           // of ProjectionShape::kUnits units
};

// The argument of the gradient kernels. In pairs.call, out and lse are what the forward pass has
// saved, `statistics` has an element for each row, and blocks are those of FloatGradientShape. Sums
// have the layout of projections.
struct AdditiveGradientArguments {
  AdditiveArguments pairs;
  DeviceArray dout, dlse;     // absent if data is null, like all arrays below
  DeviceArray dq, dk, dv;     // of rows, float32
  DeviceArray dwq, dwk;       // rows: units, columns: channels; head stride 0 if heads share it
  DeviceArray db, du;         // columns: units; du is the gradient of the parameter v
  bool adds = false;          // gradients are added to what their arrays hold
  Projections dleft, dright;  // the gradients of the projections
  Projections units;          // for du, sums over keys of g (1/2 - r)
  DeviceArray value_sums;     // sums for dv: dv itself, or if `adds` scratch memory in C order
  // Blocks of dq, dwq and du; the other blocks of their kernels are for dk, dwk and db.
  std::int64_t query_blocks = 0;
  std::int64_t query_matrix_blocks = 0;
  std::int64_t unit_vector_blocks = 0;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_ARGUMENTS_H_
