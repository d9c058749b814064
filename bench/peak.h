// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEAK_H_
#define QKV_BENCH_PEAK_H_

#include <span>
#include <string>
#include <vector>

#include <qkv/context.h>
#include <qkv/dtype.h>

#include "measure.h"

// The machine's peak rates of multiply-adds and of reads, with which kernels are compared.
namespace qkv::bench {

// The least number of bursts of a peak.
inline constexpr int kPeakBursts = 20;

// The CPU target whose peak is measured: the one in use, or the machine's best if that is
// "reference", which has no peak. "" if there is none.
std::string peak_target();

// A measurable peak.
struct Peak {
  Subject subject{};
  double work = 0;  // floating-point operations or bytes of one repetition
};
// The peak of independent fused multiply-adds in registers on `threads` threads.
Peak multiply_add_peak(const std::string& target, DType dtype, int threads);

using Bytes = std::span<const std::byte>;
// The peak of reading all these bytes once, in order, where each of `threads` threads reads a part.
Peak read_peak(const std::vector<Bytes>& arrays, int threads);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEAK_H_
