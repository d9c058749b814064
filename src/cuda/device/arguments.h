// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ARGUMENTS_H_
#define QKV_CUDA_DEVICE_ARGUMENTS_H_

#include <cstdint>

// A checked call as plain numbers and addresses in the device's memory: the argument of the
// kernels.
namespace qkv::cuda {

inline constexpr int kMaxBatchAxes = 6;

inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.693147181F;

// The type of the numbers in an array.
enum class Element : std::uint8_t {
  kNone,
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,  // also bool
  kUInt16,
  kUInt32,
  kUInt64,
};

// An array, addressed like core::Operand: strides count elements and are 0 along axes that the
// array does not have.
struct DeviceArray {
  const void* data = nullptr;
  std::int64_t batch[kMaxBatchAxes] = {};
  std::int64_t entry = 0;  // along one axis that counts all batch entries
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t col = 0;
  Element type = Element::kNone;
  // Rows are contiguous, and aligned so that they can be read 16 bytes at a time; those of out, so
  // that 2 numbers of 16 bits, or 4 of float32, can be written together.
  bool vectors = false;
};

// The most KeyLengths that a call may have.
inline constexpr int kMaxLengths = 2;

// The reach of a side of a window that is unbounded.
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;

enum class Corner : std::uint8_t { kBottomRight, kGiven, kArray };

// The statistics of a row that an earlier kernel stores, so that its weights can be computed again:
// factor * 2^(exponent factor * (s - m) + lowered).
struct alignas(16) RowStatistics {
  float m;        // the largest score without the sink; from lse: 0 unless |lse| is large
  float lowered;  // by how much a larger sink lowers the powers, at most 0; from lse: the term that
                  // makes the power of a score s equal to log2(e) (s - lse)
  float factor;   // 1 / sum, or 0 for a row without live keys; from lse: 1
  float delta;    // backward: dout . out - dlse; else 0
};

struct ForwardArguments {
  DeviceArray q, k, v, out;             // of one type: 16-bit numbers, or float32
  DeviceArray lse, row_max, entropy;    // float32; absent if data is null, like all arrays below
  DeviceArray column_sums, value_sums;  // float32, rows = keys
  DeviceArray weights;                  // float32, rows = queries, columns = keys
  DeviceArray bias, keep, padding;
  DeviceArray lengths[kMaxLengths];
  DeviceArray offsets;             // one per batch entry
  DeviceArray alibi, sinks;        // one per head
  DeviceArray starts_q, starts_k;  // first rows of packed sequences, B + 1 of each

  int batch_sizes[kMaxBatchAxes] = {};
  int batch_axes = 0;
  int B = 0;
  int H = 0, G = 0, value_heads = 0;
  int Tq = 0, Tk = 0;  // packed: all rows
  int D = 0, E = 0;    // channels of q and k, and of v

  float scale = 1;
  // Whether kernels without soft-cap, bias and ALiBi may multiply by the scale in the exponent: it
  // is above 0 and at most 1. A larger scale could turn a finite product into a score of -inf,
  // which masks its pair.
  bool scales_in_exponent = true;
  float softcap = 0;
  float twice_over_cap = 0;         // 2 log2(e) / softcap: in a kernel a division is a call
  std::int64_t left = kUnbounded;   // i + o - left <= j
  std::int64_t right = kUnbounded;  // j <= i + o + right
  Corner corner = Corner::kBottomRight;
  std::int64_t offset = 0;  // of Corner::kGiven

  // Weights whose word is below the threshold are dropped; the others are multiplied by kept_scale.
  bool drops = false;
  std::uint32_t dropout_key[2] = {};
  std::uint32_t dropout_threshold = 0;
  float kept_scale = 1;

  int row_blocks = 0;  // blocks of queries of one head; packed: an upper bound for all sequences
  int key_blocks = 0;  // blocks of keys of one head, likewise
  int inspected_blocks = 0;  // blocks of queries of the kernels that compute weights again

  // For the kernels that compute weights again: the statistics of each row of each head of each
  // batch entry (or of all packed sequences). May be null.
  RowStatistics* statistics = nullptr;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ARGUMENTS_H_
