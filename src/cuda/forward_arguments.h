// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FORWARD_ARGUMENTS_H_
#define QKV_CUDA_FORWARD_ARGUMENTS_H_

#include <cstdint>
#include <limits>
#include <string>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/arguments.h"

// Checked calls as the plain numbers and addresses that kernels receive.
namespace qkv::cuda {

// The most channels of the widest kernels.
inline constexpr Index kLargestWidth = 256;
// The most batch entries, heads or rows: kernels count blocks and rows in 32 bits.
inline constexpr Index kLargestSize = std::numeric_limits<std::int32_t>::max() - 1024;

Element element_of(DType dtype);

template <class Void>
DeviceArray device_array(const core::BasicOperand<Void>& x) {
  DeviceArray to;
  if (!x.given()) return to;
  to.data = x.data;
  for (int axis = 0; axis < x.batch_strides.rank(); ++axis) {
    to.batch[axis] = x.batch_strides[axis];
  }
  to.entry = x.entry_stride;
  to.head = x.head_stride;
  to.row = x.row_stride;
  to.col = x.col_stride;
  to.type = element_of(x.dtype);
  return to;
}

inline bool is_given(const DeviceArray& x) { return x.data != nullptr; }

// Returns `x`, one of q, k, v, out and their gradients, as an array for kernels. `vectors` (see
// DeviceArray) is set for reading rows of `width` elements, or for writing.
DeviceArray read_in_tiles(const core::Operand& x, Index width);
DeviceArray written_in_tiles(const core::ResultOperand& x);

// A scratch array of float32, [entries, heads, rows, width] in C order. The caller must set its
// address.
DeviceArray rows_in_c_order(const core::Problem& p, Index heads, Index rows, Index width);

bool any_given(core::Results results);

// Returns what no kernel supports about a call's masks, rows and other options, or an empty string.
// Scores, dtypes, channels and results are not checked here: kernels differ in them.
std::string options_unsupported(const core::Problem& p);

// The arguments of a call, except the numbers of blocks and the addresses of scratch memory.
ForwardArguments forward_arguments(const core::Problem& p, const core::Results& results);

// The number of batch entries for blocks_of(): 1 for packed sequences, which are counted together.
Index entries_of(const core::Problem& p);

// The number of blocks of `size` rows in a head of a batch entry, or in a head of all packed
// sequences, for which it is an upper bound.
Index blocks_of(const core::Problem& p, Index rows, Index size);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FORWARD_ARGUMENTS_H_
