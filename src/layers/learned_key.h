// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LEARNED_KEY_H_
#define QKV_LAYERS_LEARNED_KEY_H_

#include <vector>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/options.h>
#include <qkv/tensor.h>

// One more, learned key behind the keys of a call, to which every query attends regardless of
// masks, as in torch.nn.MultiheadAttention with add_bias_kv.
namespace qkv::layers {

// Returns x [..,T,N] with one row [N] appended to each entry: [..,T+1,N].
Tensor with_row(const Tensor& x, const Tensor& row);

// Returns the first T rows of [..,T+1,N], and writes or adds (`write`) the sum of the entries'
// last rows to `row` [N] if given.
Tensor without_row(const Tensor& x, const View& row, Write write);

// Changes the options of a call with these inputs to the options of a call with one more key, which
// all masks allow. `held` owns the new arrays. Throws Error for options that the call without that
// key would reject, and for a user's mask or score mod, which cannot handle that key.
void allow_learned_key(const Inputs& inputs, Options& options, std::vector<Tensor>& held,
                       Context& context);

// Copies `from` to `to`, of the same shape and dtype, or adds it, as `write` says.
void write_or_add(const Tensor& from, const View& to, Write write);

// Writes or adds (`write`) the gradient of a bias [..,Tk] or [..,1], computed from the gradient of
// the extended bias without its entries for the learned key.
void give_bias_gradient(const Tensor& extended, const View& to, Write write);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_LEARNED_KEY_H_
