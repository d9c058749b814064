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

// Options that say how the array `attn` of a file is read.
struct AttentionFileOptions {
  // The meaning of the axes before queries and keys, in the file's order, none twice. If empty, the
  // axes are the last ones of examples, layers, heads. {kLayers, kExamples, kHeads} is for arrays
  // [examples, heads, queries, keys], one per layer, that are stacked along a new first axis.
  std::vector<LeadingAxis> order{};
  // The name of the array that is read as `attn`; the one array of a .npy file needs none.
  std::string name = "attn";
  const std::atomic<bool>* stop = nullptr;  // if it becomes true during reading: Cancelled
};

// Attention weights of N examples, L layers and H heads; rows are queries, columns are keys.
struct AttentionFile {
  ConstView attn{};  // [N,L,H,Tq,Tk]; a real dtype, as stored
  ConstView mask{};  // bool [N,L,H,Tq,Tk], false where masked; absent if the file has none
  // If maps are pooled: the entropies, in nats, of their T rows before pooling, float64
  // [N,L,H,1,T]. Absent if the file has none or its maps are not pooled.
  ConstView row_entropy{};
  std::vector<LeadingAxis> order{};  // the axes that the file has before queries and keys
  std::vector<Tokens> src{};         // tokens of the keys: none, or N lists of Tk
  std::vector<Tokens> tgt{};         // tokens of the queries: none, or N lists of Tq
  bool same_tokens = false;          // true if the file has no `tgt`, Tq = Tk and `rows` is empty
  std::vector<Index> rows{};  // the query of each row, [Tq] ascending; empty if row i is query i
  std::vector<std::string> axes{};  // names of the rows and of the columns: none or two
  Strings line{};                   // the sentence of each example, [N]; without values if absent
  Strings translation{};            // the translation of each example's sentence, [N]
  // The name of the numbers, such as "score"; "" if none is stored or another array is read as
  // `attn`.
  std::string quantity{};
  Tensor attn_memory{};  // the memory of the views above, which stay valid when the struct is moved
  Tensor mask_memory{};
  Tensor entropy_memory{};

  Index query_of(Index row) const {
    return rows.empty() ? row : rows[static_cast<std::size_t>(row)];
  }
};

// True if one of the arrays is called "attn".
QKV_API bool has_attention(std::span<const NamedArray> arrays);

// Reads attention weights from an .npz file, a .safetensors file, or a .npy file that is `attn`
// alone ("-": standard input). `attn` has 2 to 5 axes: [examples, layers, heads,] queries, keys.
// `src` and `tgt` are text of shape [Tk] and [Tq], or [N,Tk] and [N,Tq]; `src` alone serves both
// if Tq = Tk and the file has all queries. `mask` (bool or integers, 0 = masked) broadcasts to
// `attn` by NumPy's rules, with its axes as in the file. `axes` is text [2]: the names of rows and
// columns. `rows`, ascending integers [Tq] from 0 or more, are the query indices of a file that
// does not hold all queries. `line` and `translation` are text [N]. `quantity`, text [1], is the
// name of the numbers in `attn` if they are not weights. `entropy`, with more rows than `attn` has,
// says that attn's rows are pooled. Other arrays are ignored. Throws InputError that names the
// file, the array and the rule, and Error for an axis that is twice in options.order.
QKV_API AttentionFile read_attention_file(const std::string& path,
                                          const AttentionFileOptions& options = {});

// Interprets arrays that were already read; `file` is the name of their file in messages.
QKV_API AttentionFile attention_from(const std::string& file, std::vector<NamedArray> arrays,
                                     const AttentionFileOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_FILE_H_
