// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_Q8_H_
#define QKV_Q8_H_

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/view.h>

// Keys and values of 8 bits, in blocks of 32 channels that share a scale (BlockQ8 in qkv/dtype.h):
// the layout that ggml calls Q8_0. attention() reads them as k [B,G,Tk,D/32], v [B,G,Tk,E/32], with
// float32 q, and gives the bits of the same call on their numbers as float32. The blocks of a row
// are next to each other; the other strides, which count blocks, may be any. They have no backward
// pass.
namespace qkv {

// x [..,D], float32, bfloat16 or float16, D a multiple of 32, to blocks [..,D/32]. As ggml's
// reference: with a the largest |x| of a block, the scale is a / 127 as a float16, and a value is
// x / (a / 127) rounded to the nearest integer, halves away from zero. So a number is off by at
// most a / 254 from the rounding of values and, from that of the scale, max(a / 2048, 2^-18). The
// block is 0 if its scale is. Throws Error for shapes and types that do not fit, shared memory, and
// numbers that no block can hold: NaN, infinity, and |x| above 65519 * 127 (8.3 million).
// With a context, on the calling thread too, its stop flag is polled.
QKV_API void quantize_q8(const ConstView& x, const View& to);
QKV_API void quantize_q8(const ConstView& x, const View& to, Context& context);

// Blocks x [..,D/32] to their numbers [..,D], float32: exact; those of a scale that is infinite or
// NaN are NaN. Throws Error for shapes and types that do not fit, and shared memory.
QKV_API void dequantize_q8(const ConstView& x, const View& to);
QKV_API void dequantize_q8(const ConstView& x, const View& to, Context& context);

}  // namespace qkv

#endif  // QKV_Q8_H_
