// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_DOT2_KERNELS_H_
#define QKV_KERNELS_DOT2_KERNELS_H_

#include "kernels/gradient_kernels.h"

// BF16 two-way dot products, for the target avx512bf16. core/bfloat16_products.h defines them.
//
// The tables hold these kernels and, for all but the products, those of avx512. Where the loops for
// float32 read rows of q, panels, weights or copied values, dot2 kernels read 32-bit words of two
// BF16 numbers, the first in the lower half:
//   q       word m of a row: channels 2m and 2m + 1, made by `widen`
//   panel   [words of channels][kPanel]: word n of row m is of key n
//   w       word m of a row: keys 2m and 2m + 1, made by `round_weights`
//   v       [words of keys][E], made by `join_values`; stored values are read as they are
// In the backward pass rows of dout have the words of rows of q, and transposed_sum reads
//   w       word n of row m: queries 2m and 2m + 1 for key n, made by `join_rows`
//   x       [words of queries][width], made by `join_values`
// row_dots takes rows of words, all_finite a number of words. If the number of channels or keys is
// odd, the second half of the last word is 0. Arguments count channels and keys, not words.
namespace qkv::kernels {

// Number of words that hold n channels or keys.
constexpr Index words_of(Index n) { return (n + 1) / 2; }

// The tables of dot2 kernels, for CPUs on which kAvx512Bf16 is supported.
const DotKernels<float>& dot2_kernels() noexcept;
const GradientKernels<float>& dot2_gradient_kernels() noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_DOT2_KERNELS_H_
