// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_C_READER_H_
#define QKV_C_READER_H_

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <qkv/attention.h>
#include <qkv/c.h>

namespace qkv::c {

// Converts the structs of a call to arguments of the C++ functions. Each function throws Error for
// a value that a field cannot have, and for a field that is set although its option is not given
// (except rotary.base and qk_norm.eps).
class Reader {
 public:
  // `function` is the name in messages.
  explicit Reader(std::string_view function) : function_(function) {}

  Inputs inputs(const qkv_inputs* inputs) const;
  Options options(const qkv_options* options) const;  // null: the defaults
  Outputs outputs(const qkv_outputs* outputs) const;
  Saved saved(const qkv_saved* saved) const;
  OutputGradients output_gradients(const qkv_output_gradients* gradients) const;
  InputGradients input_gradients(const qkv_input_gradients* gradients) const;
  // The view of an array; absent if its dtype, data and rank are 0. Messages call a field of the
  // array NAME.sizes, or sizes where the name is empty.
  View view(std::string_view name, const qkv_tensor& tensor) const;

 private:
  using NamedTensor = std::pair<std::string_view, const qkv_tensor*>;

  DType dtype(std::string_view name, std::int32_t value) const;
  bool flag(std::string_view name, std::int32_t value) const;
  void expect_zero(std::string_view name, std::int64_t value, std::string_view why) const;
  void expect_absent(std::initializer_list<NamedTensor> tensors, std::string_view why) const;
  Shard shard(const qkv_shard& shard) const;
  void read_norm(const qkv_qk_norm& norm, Options& to) const;
  void read_rotary(const qkv_rotary& rotary, Options& to) const;
  void read_score(const qkv_options& from, Options& to) const;
  void read_scale(const qkv_options& from, Options& to) const;
  void read_diagonal(const qkv_diagonal& diagonal, Options& to) const;
  void read_masks(const qkv_options& from, Options& to) const;
  void read_dropout(const qkv_dropout& dropout, Options& to) const;
  Rows rows(std::string_view rows_name, std::string_view name, const qkv_rows& rows) const;
  ScoreGradient score_gradient(const qkv_score_gradients& score) const;

  std::string_view function_;
};

}  // namespace qkv::c

#endif  // QKV_C_READER_H_
