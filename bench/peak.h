// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEAK_H_
#define QKV_BENCH_PEAK_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <qkv/context.h>
#include <qkv/dtype.h>

#include "measure.h"

// The machine's peaks, which kernels are compared with.
namespace qkv::bench {

// The minimum number of bursts.
inline constexpr int kPeakBursts = 20;

// The best target of this CPU that has a peak, at most the one in use; "" if there is none.
std::string peak_target();

// Independent fused multiply-adds in registers, on `threads` threads. One repetition does `work`
// floating-point operations.
struct Peak {
  Subject subject{};
  double work = 0;
};
Peak multiply_add_peak(const std::string& target, DType dtype, int threads);

// Reads these bytes once, in order, on `threads` threads, each its own part. `work` is in bytes.
using Bytes = std::span<const std::byte>;
Peak read_peak(const std::vector<Bytes>& arrays, int threads);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEAK_H_
