// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ORDER_H_
#define QKV_CORE_ORDER_H_

#include <qkv/options.h>

// The order of summation is part of the definition: every implementation sums in blocks of these
// lengths, counted from index 0 of the sequence. Changing one changes the bits of every result.
namespace qkv::core {

// The number of keys of one softmax chunk: maximum, exponentials, sum and weighted sum start anew
// in each chunk, and chunks are merged in ascending order. Measured (forward, float32, D = 64, T =
// 512 and 2048): 256 keys reach 79 and 84 % of the multiply-add peak, 512 reach 81 and 85.5 %, 1024
// reach 81 and 85 %, and 128 lose 4 to 5 points.
inline constexpr Index kKeyChunk = 512;

// The number of keys of a chunk for keys of D channels (in additive attention too, for any number
// of units). For wide rows chunks of 256 keys take equal time (AVX-512, D = 128) or 5 to 10 % less
// (AVX2, D = 128 to 1,024: a chunk's values stay in the cache), and the weighted sum is more
// accurate.
inline constexpr Index key_chunk(Index D) { return D < 128 ? kKeyChunk : kKeyChunk / 2; }

// The number of partial sums of exponentials: key j is added to sum j mod 64, and the sums are
// added as a fixed tree. 64 is the width of packed key panels: four registers of 16 float32
// (AVX-512), a multiple of every narrower register, and enough chains to hide the latency of an
// addition.
inline constexpr Index kPartialSums = 64;

// The number of partial sums of a product of a row with itself or with another, in the transforms
// of rows: channel c is added to sum c mod 16, and the sums are added as a tree. 16 sums of float32
// fill four SSE registers.
inline constexpr Index kRowSums = 16;

// The number of channels of a score, or of terms of another product of rows with a matrix, that one
// accumulator sums from zero. These blocks are added in ascending order. Blocks of 64 keep the
// error of float32 at that of D = 64; blocks of 128 leave a score up to 1.4 times that error.
inline constexpr Index kChannelBlock = 64;

// The number of units of the additive score that are summed from zero before they are added to the
// score: one long sum has a larger error (scripts/measure/additive_accuracy.py).
inline constexpr Index kUnitChunk = 32;

// The number of keys (for dq) or queries (for dk, dv) of one block of the backward pass; blocks are
// added in ascending order.
inline constexpr Index kGradientBlock = 128;

// The exponent x below which a weight exp(x) counts as 0: ln(2^-72), in float64 ln(2^-968).
// Subnormal operands and results take some 150 cycles on many CPUs. The smallest weight that is
// kept may be multiplied by 2^-54 before a product is subnormal
// (docs/decisions/0032-small-weights-are-zero.md).
template <class T>
inline constexpr T kLeastExponent = sizeof(T) == 4 ? T(-49.9065970003) : T(-670.966470782027);

// The x below which an exponential that is a result, not a weight, counts as 0. The exponentials
// that remain are normal numbers.
template <class T>
inline constexpr T kNormalExponent = sizeof(T) == 4 ? T(-87.3) : T(-708.3);

// The |lse| above which the rounding of lse shows in the weights exp(s - lse): see
// core/weight_factor.h.
inline constexpr int kLargeLse = 16;

static_assert(kKeyChunk % kPartialSums == 0, "a chunk starts at partial sum 0");
static_assert(kShardKeys % kKeyChunk == 0, "a shard begins with a chunk");

}  // namespace qkv::core

#endif  // QKV_CORE_ORDER_H_
