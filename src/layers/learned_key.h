// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LEARNED_KEY_H_
#define QKV_LAYERS_LEARNED_KEY_H_

#include <vector>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/options.h>
#include <qkv/tensor.h>

// One more key behind the given ones, which every query sees whatever masks say: what
// torch.nn.MultiheadAttention does with add_bias_kv.
namespace qkv::layers {

// x [..,T,N] with one row [N] behind those of each entry: [..,T+1,N].
Tensor with_row(const Tensor& x, const Tensor& row);

// The first T of [..,T+1,N] rows, and the sum of the last ones, added to `row` [N] where it is
// given and `write` says so.
Tensor without_row(const Tensor& x, const View& row, Write write);

// Changes the options of a call with these inputs so that they are those of the call with one more
// key. Arrays that they then name stand in `held`. Throws Error for what the call without that key
// would refuse, and for a user's mask, which does not know of it.
void let_see_last_key(const Inputs& inputs, Options& options, std::vector<Tensor>& held,
                      Context& context);

// Puts an array into a buffer of its shape and dtype, or adds it to what is there.
void give(const Tensor& from, const View& to, Write write);

// The gradient of a bias [..,Tk] or [..,1] from that of the bias with the last key's zeros.
void give_bias_gradient(const Tensor& extended, const View& to, Write write);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_LEARNED_KEY_H_
