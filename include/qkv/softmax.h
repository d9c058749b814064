// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_SOFTMAX_H_
#define QKV_SOFTMAX_H_

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/view.h>

// Without a context each runs on the calling thread; with one, on its executor, polling its stop
// flag. The bits are the same; those of a row do not depend on the rest of the call.
namespace qkv {

// out[..,j] = exp(x[..,j]) / sum_j' exp(x[..,j']) along the last axis; any rank >= 1. The row
// maximum is subtracted. A row whose entries are all -inf gives zeros; NaN or +inf makes the row
// NaN. `x` and `out` share shape and dtype (float64, float32, bfloat16, float16); not in place.
QKV_API void softmax(const ConstView& x, const View& out);
QKV_API void softmax(const ConstView& x, const View& out, Context& context);

// softmax over the first `lengths` entries of each row, 0 in the rest (seed 002). x [B,T,N] (or
// [B,N]); lengths absent, [B] or [B,T], integers from 0 to N. A length of 0 gives zeros.
QKV_API void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out);
QKV_API void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out,
                            Context& context);

enum class Transpose { kNo, kYes };

// out[..,n,m] = sum_l a[..,n,l] b[..,l,m], each of the two optionally given transposed in its last
// two axes; leading axes broadcast as in NumPy. Sums are fused multiply-adds over ascending l in
// the accumulator's type, in blocks of 64, each from zero, added in ascending order. All three
// share a dtype.
QKV_API void batch_dot(const ConstView& a, const ConstView& b, const View& out,
                       Transpose transpose_a = Transpose::kNo,
                       Transpose transpose_b = Transpose::kNo);
QKV_API void batch_dot(const ConstView& a, const ConstView& b, const View& out,
                       Transpose transpose_a, Transpose transpose_b, Context& context);

}  // namespace qkv

#endif  // QKV_SOFTMAX_H_
