// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_FILE_H_
#define QKV_APP_ATTENTION_FILE_H_

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

using Tokens = std::vector<std::string>;

// The meaning of an axis of `attn` before queries and keys.
enum class LeadingAxis { kExamples, kLayers, kHeads };

// How `attn` is read.
struct AttentionFileOptions {
  // The axes before queries and keys, in the file's order, none twice; empty: the last of
  // examples, layers, heads. {kLayers, kExamples, kHeads} is what stacking one array
  // [examples, heads, queries, keys] per layer gives.
  std::vector<LeadingAxis> order{};
  std::string name = "attn";  // of the array that is read as attn; a .npy file needs none
  const std::atomic<bool>* stop = nullptr;  // if set while the file is read: Cancelled
};

// Attention weights; rows are queries: N examples, L layers, H heads.
struct AttentionFile {
  ConstView attn{};                  // [N,L,H,Tq,Tk]; a real dtype, as stored
  ConstView mask{};                  // bool [N,L,H,Tq,Tk], false where masked; absent: none
  std::vector<LeadingAxis> order{};  // the axes that the file has before queries and keys
  std::vector<Tokens> src{};         // of the keys: none, or N lists of Tk
  std::vector<Tokens> tgt{};         // of the queries: none, or N lists of Tq
  bool same_tokens = false;          // tgt is src, which serves both
  std::vector<Index> rows{};         // the query of each row, Tq ascending; none: row i is query i
  std::vector<std::string> axes{};   // names of the rows and of the columns: none or two
  Strings line{};                    // the sentence of each example, [N]; no values: none
  Strings translation{};             // likewise, what it was translated to
  Tensor attn_memory{};              // backs the views; both are moved with the struct
  Tensor mask_memory{};

  Index query_of(Index row) const {
    return rows.empty() ? row : rows[static_cast<std::size_t>(row)];
  }
};

// True if one of the arrays is called "attn".
QKV_API bool has_attention(std::span<const NamedArray> arrays);

// Reads .npz, .safetensors, or a .npy that is `attn` alone ("-": standard input). `attn` has 2 to 5
// axes: [examples, layers, heads,] queries, keys. `src` and `tgt` are text of shape [Tk] and [Tq],
// or [N,Tk] and [N,Tq]; src alone serves both where Tq = Tk. `mask` (bool or integers, 0 = masked)
// broadcasts to attn, with its axes as in the file, by NumPy's rules. `axes` is text [2]: the names
// of rows and columns. `rows`, integers [Tq] that ascend from 0 or more, are the queries of a file
// that does not have them all. `line` and `translation` are text [N]. Other arrays are ignored.
// Throws InputError that names the file, the array and the rule.
QKV_API AttentionFile read_attention_file(const std::string& path,
                                          const AttentionFileOptions& options = {});

// The same from arrays that were read from `file`, the name in messages.
QKV_API AttentionFile attention_from(const std::string& file, std::vector<NamedArray> arrays,
                                     const AttentionFileOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_FILE_H_
