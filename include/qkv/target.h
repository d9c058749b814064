// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TARGET_H_
#define QKV_TARGET_H_

#include <span>
#include <string_view>

#include <qkv/dtype.h>
#include <qkv/export.h>
#include <qkv/view.h>

// CPU targets: the instruction sets that the library has fast implementations for.
namespace qkv {

// The targets of this build that this CPU supports, best first. On x86-64: "amx", "avx512bf16",
// "avx512", "avx2", "sse4"; on AArch64: "neon". On Intel's CPUs "avx512" comes before "avx512bf16":
// their bfloat16 instruction is slower than widening to float32. Then come "amx-emulated", which
// gives the bits of "amx" on CPUs with AVX512-BF16, slowly, and "reference", the plain loops; these
// two are used only on request. The first call of any function that needs a target asks the
// operating system to permit AMX, once in the process. If QKV_TARGET names a target other than
// "amx", only cpu_targets() and multiply_add_burst() ask.
QKV_API std::span<const std::string_view> cpu_targets();

// The target that calls use: the first of cpu_targets(), or the one that the environment variable
// QKV_TARGET names (read once, when first needed). Throws Error if the variable names a target that
// is not in cpu_targets(); attention() then throws, too.
QKV_API std::string_view cpu_target();

// Measures what the CPU can do: runs `rounds` rounds of independent fused multiply-adds (products
// and sums where the target has none) on full registers of float32 or float64, or of bfloat16 where
// the target has products of it: "avx512bf16" and the targets of AMX. Returns the number of
// floating-point operations, two for each product; the caller measures the time. Throws Error for a
// target that is not in cpu_targets() or is "reference", for another type, or for rounds < 0.
QKV_API double multiply_add_burst(std::string_view target, DType type, Index rounds);

}  // namespace qkv

#endif  // QKV_TARGET_H_
