// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_Q8_H_
#define QKV_Q8_H_

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/view.h>

// Keys and values of 8 bits, in blocks of 32 channels that share a scale (BlockQ8 in qkv/dtype.h),
// in the layout that ggml calls Q8_0. attention() reads them as k [B,G,Tk,D/32] and v
// [B,G,Tk,E/32], with float32 q; its results are bit-identical to those for the numbers of the
// blocks as float32. The blocks of a row must be contiguous; the other strides, which count blocks,
// are free. Keys and values of q8 have no backward pass.
namespace qkv {

// Converts numbers x [..,D] of type float32, bfloat16 or float16, D a multiple of 32, to blocks
// [..,D/32], by the rule of ggml's reference: with a the largest |x| of a block, the scale is a /
// 127 as a float16, and a value is x * (1 / (a / 127)) rounded to the nearest integer, halves away
// from zero. The error of a number is at most a / 254 (rounding the value) + max(a / 2048, 2^-18)
// (rounding the scale). A block whose scale is 0 is all 0. Throws Error for shapes and types that
// do not fit, for shared memory, and for numbers that no block can hold: NaN, infinity, and |x|
// of 65520 * 127 or more (8.3 million). If a context is given, its stop flag is polled, but the
// work stays on the calling thread.
QKV_API void quantize_q8(const ConstView& x, const View& to);
QKV_API void quantize_q8(const ConstView& x, const View& to, Context& context);

// Converts blocks x [..,D/32] to their numbers [..,D], float32. This is exact; the numbers of a
// block whose scale is infinite or NaN are NaN. Throws Error for shapes and types that do not fit
// and for shared memory.
QKV_API void dequantize_q8(const ConstView& x, const View& to);
QKV_API void dequantize_q8(const ConstView& x, const View& to, Context& context);

}  // namespace qkv

#endif  // QKV_Q8_H_
