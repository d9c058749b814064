// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_FILE_H_
#define QKV_APP_ATTENTION_FILE_H_

#include <span>
#include <string>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

using Tokens = std::vector<std::string>;

// Weights that somebody computed, rows being queries: N examples, L layers, H heads.
struct AttentionFile {
  Tensor attn{};              // [N,L,H,Tq,Tk]; a real dtype, as stored
  int stored_rank = 0;        // 2 to 5: the axes that the file has, counted from the last
  std::vector<Tokens> src{};  // of the keys: none, or N lists of Tk
  std::vector<Tokens> tgt{};  // of the queries: none, or N lists of Tq
  Tensor mask{};              // bool [N,L,H,Tq,Tk], false where masked; absent: the file has none
};

// True when one of the arrays is called "attn".
QKV_API bool has_attention(std::span<const NamedArray> arrays);

// Reads .npz, .safetensors, or a .npy that is `attn` alone ("-": standard input). `attn` has 2 to 5
// axes: [examples, layers, heads,] queries, keys. `src` and `tgt` are text of shape [Tk] and [Tq],
// or [N,Tk] and [N,Tq]; src alone serves both where Tq = Tk. `mask` (bool or integers, 0 = masked)
// stretches over attn as NumPy broadcasts. Other arrays are passed over.
// Throws InputError that names the file, the array and the rule.
QKV_API AttentionFile read_attention_file(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_FILE_H_
