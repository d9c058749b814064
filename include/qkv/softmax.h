// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_SOFTMAX_H_
#define QKV_SOFTMAX_H_

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/view.h>

// Softmax and batched products. Without a context, each function runs on the calling thread; with
// a context, it runs on the context's executor and polls the context's stop flag. Results are
// bit-identical in both cases, and a row's results do not depend on other rows.
namespace qkv {

// out[..,j] = exp(x[..,j]) / sum_j' exp(x[..,j']) along the last axis, for any rank >= 1. The row
// maximum is subtracted first. A row whose entries are all -inf gives zeros; NaN or +inf makes the
// row NaN. `x` and `out` share shape and dtype (float64, float32, bfloat16, float16), and may not
// share memory.
QKV_API void softmax(const ConstView& x, const View& out);
QKV_API void softmax(const ConstView& x, const View& out, Context& context);

// Computes softmax over the first `lengths` entries of each row and writes 0 to the other entries
// (docs/seeds.md, document 002). x is [B,T,N] or [B,N]. lengths has integers from 0 to N, [B] or
// [B,T]; if it is absent, every length is N. A length of 0 gives zeros.
QKV_API void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out);
QKV_API void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out,
                            Context& context);

enum class Transpose { kNo, kYes };

// out[..,n,m] = sum_l a[..,n,l] b[..,l,m]. Each of a and b may be given transposed in its last two
// axes; leading axes broadcast as in NumPy, and all three arrays share a dtype. Sums are in the
// accumulator's type, in blocks of 64 terms. A block starts from zero and adds its products by
// ascending l with fused multiply-adds (on SSE4, each product is rounded first). Then the blocks
// are added in ascending order.
QKV_API void batch_dot(const ConstView& a, const ConstView& b, const View& out,
                       Transpose transpose_a = Transpose::kNo,
                       Transpose transpose_b = Transpose::kNo);
QKV_API void batch_dot(const ConstView& a, const ConstView& b, const View& out,
                       Transpose transpose_a, Transpose transpose_b, Context& context);

}  // namespace qkv

#endif  // QKV_SOFTMAX_H_
