// SPDX-License-Identifier: Apache-2.0
#include "c/reader.h"

#include <cstddef>
#include <span>
#include <string>

#include "c/structs.h"
#include "core/message.h"

namespace qkv::c {
namespace {

using core::text;

// The text of an error after its argument.
std::string_view detail_of(const Error& error) {
  std::string_view detail = error.what();
  detail.remove_prefix(error.function().size() + 2 + error.argument().size());
  if (detail.starts_with(' ')) detail.remove_prefix(1);
  return detail;
}

// Returns "name.field", or only the field if the array has no name.
std::string field_of(std::string_view name, std::string_view field) {
  return text(name, name.empty() ? "" : ".", field);
}

}  // namespace

// ---- fields ---------------------------------------------------------------------------------

DType Reader::dtype(std::string_view name, std::int32_t value) const {
  switch (value) {
    case QKV_FLOAT64:
      return DType::kFloat64;
    case QKV_FLOAT32:
      return DType::kFloat32;
    case QKV_BFLOAT16:
      return DType::kBFloat16;
    case QKV_FLOAT16:
      return DType::kFloat16;
    case QKV_BOOL:
      return DType::kBool;
    case QKV_INT8:
      return DType::kInt8;
    case QKV_INT16:
      return DType::kInt16;
    case QKV_INT32:
      return DType::kInt32;
    case QKV_INT64:
      return DType::kInt64;
    case QKV_UINT8:
      return DType::kUInt8;
    case QKV_UINT16:
      return DType::kUInt16;
    case QKV_UINT32:
      return DType::kUInt32;
    case QKV_UINT64:
      return DType::kUInt64;
    case QKV_Q8:
      return DType::kQ8;
    default:
      throw Error(function_, field_of(name, "dtype"), text("must be a qkv_dtype, got ", value),
                  ErrorKind::kType);
  }
}

View Reader::view(std::string_view name, const qkv_tensor& tensor) const {
  if (tensor.dtype == QKV_NONE) {
    if (tensor.data == nullptr && tensor.rank == 0) return {};
    throw Error(function_, field_of(name, "dtype"),
                "is QKV_NONE, for an absent array, but data or rank is not 0", ErrorKind::kType);
  }
  const DType type = dtype(name, tensor.dtype);
  if (tensor.rank < 0 || tensor.rank > kMaxRank) {
    throw Error(function_, field_of(name, "rank"),
                text("must be 0 to ", kMaxRank, ", got ", tensor.rank));
  }
  const auto rank = static_cast<std::size_t>(tensor.rank);
  const Dims sizes(std::span<const Index>(tensor.sizes, rank));
  const Dims strides(std::span<const Index>(tensor.strides, rank));
  try {
    return {tensor.data, type, sizes, strides};
  } catch (const Error& error) {
    std::string_view field = error.argument();
    if (field == "shape") field = "sizes";
    throw Error(function_, field_of(name, field), detail_of(error), error.kind());
  }
}

bool Reader::flag(std::string_view name, std::int32_t value) const {
  if (value == 0 || value == 1) return value == 1;
  throw Error(function_, name, text("must be 0 or 1, got ", value));
}

void Reader::expect_zero(std::string_view name, std::int64_t value, std::string_view why) const {
  if (value == 0) return;
  throw Error(function_, name,
              text("must be 0", why.empty() ? "" : " where ", why, ", got ", value));
}

void Reader::expect_absent(std::initializer_list<NamedTensor> tensors, std::string_view why) const {
  for (const auto& [name, tensor] : tensors) {
    if (view(name, *tensor).given()) throw Error(function_, name, text("is given but ", why));
  }
}

// ---- inputs ---------------------------------------------------------------------------------

Shard Reader::shard(const qkv_shard& shard) const {
  expect_zero("shard.reserved", shard.reserved, "");
  return {shard.first_query, shard.queries, shard.first_key, shard.keys};
}

Inputs Reader::inputs(const qkv_inputs* inputs) const {
  const qkv_inputs from = whole(function_, "inputs", inputs);
  Inputs to{view("q", from.q),
            view("k", from.k),
            view("v", from.v),
            view("cu_seqlens_q", from.cu_seqlens_q),
            view("cu_seqlens_k", from.cu_seqlens_k),
            view("block_tables", from.block_tables),
            view("context_lens", from.context_lens),
            {}};
  const Shard part = shard(from.shard);
  if (flag("shard.given", from.shard.given)) {
    to.shard = part;
  } else if (part != Shard{}) {
    throw Error(function_, "shard.given", "is 0 but other fields of shard are not");
  }
  return to;
}

// ---- options --------------------------------------------------------------------------------

void Reader::read_norm(const qkv_qk_norm& norm, Options& to) const {
  expect_zero("qk_norm.reserved", norm.reserved, "");
  if (flag("qk_norm.given", norm.given)) {
    to.qk_norm = QkNorm{view("qk_norm.q", norm.q), view("qk_norm.k", norm.k), norm.eps};
  } else {
    expect_absent({{"qk_norm.q", &norm.q}, {"qk_norm.k", &norm.k}}, "qk_norm.given is 0");
  }
}

void Reader::read_rotary(const qkv_rotary& rotary, Options& to) const {
  expect_zero("rotary.reserved", rotary.reserved, "");
  RotaryPairing pairs{};
  switch (rotary.pairs) {
    case QKV_NO_ROTARY:
      expect_zero("rotary.width", rotary.width, "rotary.pairs is QKV_NO_ROTARY");
      expect_absent({{"rotary.frequencies", &rotary.frequencies},
                     {"rotary.q_positions", &rotary.q_positions},
                     {"rotary.k_positions", &rotary.k_positions}},
                    "rotary.pairs is QKV_NO_ROTARY");
      return;
    case QKV_NEIGHBOURS:
      pairs = RotaryPairing::kNeighbours;
      break;
    case QKV_HALVES:
      pairs = RotaryPairing::kHalves;
      break;
    default:
      throw Error(function_, "rotary.pairs",
                  text("must be a qkv_rotary_pairs, got ", rotary.pairs));
  }
  to.rotary = Rotary{.pairs = pairs,
                     .base = rotary.base,
                     .width = rotary.width,
                     .frequencies = view("rotary.frequencies", rotary.frequencies),
                     .q_positions = view("rotary.q_positions", rotary.q_positions),
                     .k_positions = view("rotary.k_positions", rotary.k_positions)};
}

void Reader::read_score(const qkv_options& from, Options& to) const {
  const Bilinear bilinear{view("bilinear.w", from.bilinear.w)};
  const Additive additive{view("additive.wq", from.additive.wq),
                          view("additive.wk", from.additive.wk),
                          view("additive.v", from.additive.v), view("additive.b", from.additive.b)};
  switch (from.score) {
    case QKV_SCALED_DOT:
      to.score = ScaledDot{};
      break;
    case QKV_DOT:
      to.score = Dot{};
      break;
    case QKV_BILINEAR:
      to.score = bilinear;
      break;
    case QKV_ADDITIVE:
      to.score = additive;
      break;
    case QKV_COSINE:
      to.score = Cosine{};
      break;
    default:
      throw Error(function_, "score", text("must be a qkv_score, got ", from.score));
  }
  const std::string why = text("the score is ", name_of(to.score));
  if (from.score != QKV_BILINEAR) expect_absent({{"bilinear.w", &from.bilinear.w}}, why);
  if (from.score != QKV_ADDITIVE) {
    expect_absent({{"additive.wq", &from.additive.wq},
                   {"additive.wk", &from.additive.wk},
                   {"additive.v", &from.additive.v},
                   {"additive.b", &from.additive.b}},
                  why);
  }
}

void Reader::read_scale(const qkv_options& from, Options& to) const {
  if (flag("scale_given", from.scale_given)) {
    to.scale = from.scale;
  } else if (from.scale != 0) {
    throw Error(function_, "scale_given", text("is 0 but scale is ", from.scale));
  }
}

void Reader::read_diagonal(const qkv_diagonal& diagonal, Options& to) const {
  expect_zero("diagonal.reserved", diagonal.reserved, "");
  const ConstView offsets = view("diagonal.offsets", diagonal.offsets);
  switch (diagonal.kind) {
    case QKV_BOTTOM_RIGHT:
      to.diagonal = BottomRight{};
      break;
    case QKV_TOP_LEFT:
      to.diagonal = TopLeft{};
      break;
    case QKV_OFFSET:
      to.diagonal = Offset{diagonal.offset};
      break;
    case QKV_OFFSETS:
      to.diagonal = Offsets{offsets};
      break;
    default:
      throw Error(function_, "diagonal.kind",
                  text("must be a qkv_diagonal_kind, got ", diagonal.kind));
  }
  const std::string why = text("the diagonal is ", name_of(to.diagonal));
  if (diagonal.kind != QKV_OFFSET) expect_zero("diagonal.offset", diagonal.offset, why);
  if (diagonal.kind != QKV_OFFSETS) {
    expect_absent({{"diagonal.offsets", &diagonal.offsets}}, why);
  }
}

void Reader::read_masks(const qkv_options& from, Options& to) const {
  if (flag("causal", from.causal)) to.masks.emplace_back(Causal{});
  const Window window{from.window.left, from.window.right};
  if (window.left != -1 || window.right != -1) to.masks.emplace_back(window);
  const ConstView keep = view("keep", from.keep);
  const ConstView padding = view("padding", from.padding);
  const ConstView lengths = view("key_lengths", from.key_lengths);
  if (keep.given()) to.masks.emplace_back(Keep{keep});
  if (padding.given()) to.masks.emplace_back(Padding{padding});
  if (lengths.given()) to.masks.emplace_back(KeyLengths{lengths});
}

void Reader::read_dropout(const qkv_dropout& dropout, Options& to) const {
  expect_zero("dropout.reserved", dropout.reserved, "");
  to.dropout.p = dropout.p;
  if (flag("dropout.seed_given", dropout.seed_given)) {
    to.dropout.seed = dropout.seed;
  } else if (dropout.seed != 0) {
    throw Error(function_, "dropout.seed_given", text("is 0 but dropout.seed is ", dropout.seed));
  }
}

Options Reader::options(const qkv_options* options) const {
  Options to;
  if (options == nullptr) return to;
  const qkv_options from = whole(function_, "options", options);
  expect_zero("options.reserved", from.reserved, "");
  read_norm(from.qk_norm, to);
  read_rotary(from.rotary, to);
  read_score(from, to);
  read_scale(from, to);
  to.softcap = from.softcap;
  to.bias = view("bias", from.bias);
  read_diagonal(from.diagonal, to);
  to.alibi = view("alibi", from.alibi);
  read_masks(from, to);
  to.sinks = view("sinks", from.sinks);
  read_dropout(from.dropout, to);
  return to;
}

// ---- results --------------------------------------------------------------------------------

Rows Reader::rows(std::string_view rows_name, std::string_view name, const qkv_rows& rows) const {
  return {view(rows_name, rows.rows), view(name, rows.matrix)};
}

Outputs Reader::outputs(const qkv_outputs* outputs) const {
  const qkv_outputs from = whole(function_, "outputs", outputs);
  return {.out = view("out", from.out),
          .lse = view("lse", from.lse),
          .row_max = view("row_max", from.row_max),
          .entropy = view("entropy", from.entropy),
          .column_sums = {view("column_sums.rows", from.column_sums.rows),
                          view("column_sums", from.column_sums.sums)},
          .value_sums = view("value_sums", from.value_sums),
          .pooled = view("pooled", from.pooled),
          .top = {from.top.count, view("top.weights", from.top.weights),
                  view("top.keys", from.top.keys)},
          .weights = rows("weights.rows", "weights", from.weights),
          .dropped_weights = rows("dropped_weights.rows", "dropped_weights", from.dropped_weights),
          .raw_scores = rows("raw_scores.rows", "raw_scores", from.raw_scores),
          .capped_scores = rows("capped_scores.rows", "capped_scores", from.capped_scores),
          .masked_scores = rows("masked_scores.rows", "masked_scores", from.masked_scores)};
}

// ---- gradients ------------------------------------------------------------------------------

Saved Reader::saved(const qkv_saved* saved) const {
  const qkv_saved from = whole(function_, "saved", saved);
  return {view("saved.out", from.out), view("saved.lse", from.lse)};
}

OutputGradients Reader::output_gradients(const qkv_output_gradients* gradients) const {
  const qkv_output_gradients from = whole(function_, "output_gradients", gradients);
  OutputGradients to;
  to.out = view("output_gradients.out", from.out);
  to.lse = view("output_gradients.lse", from.lse);
  to.weights = {view("output_gradients.weights.rows", from.weights.rows),
                view("output_gradients.weights", from.weights.matrix)};
  return to;
}

ScoreGradient Reader::score_gradient(const qkv_score_gradients& score) const {
  const BilinearGradient bilinear{view("input_gradients.score.w", score.w)};
  const AdditiveGradient additive{
      view("input_gradients.score.wq", score.wq), view("input_gradients.score.wk", score.wk),
      view("input_gradients.score.v", score.v), view("input_gradients.score.b", score.b)};
  const bool of_additive =
      additive.wq.given() || additive.wk.given() || additive.v.given() || additive.b.given();
  if (!bilinear.w.given()) return of_additive ? ScoreGradient(additive) : ScoreGradient();
  if (!of_additive) return bilinear;
  throw Error(function_, "input_gradients.score.w",
              "is given, but so are gradients of the additive score");
}

InputGradients Reader::input_gradients(const qkv_input_gradients* gradients) const {
  const qkv_input_gradients from = whole(function_, "input_gradients", gradients);
  expect_zero("input_gradients.reserved", from.reserved, "");
  InputGradients to;
  to.q = view("input_gradients.q", from.q);
  to.k = view("input_gradients.k", from.k);
  to.v = view("input_gradients.v", from.v);
  to.qk_norm = {view("input_gradients.qk_norm.q", from.qk_norm.q),
                view("input_gradients.qk_norm.k", from.qk_norm.k)};
  to.score = score_gradient(from.score);
  to.bias = view("input_gradients.bias", from.bias);
  to.alibi = view("input_gradients.alibi", from.alibi);
  to.sinks = view("input_gradients.sinks", from.sinks);
  to.write =
      flag("input_gradients.accumulate", from.accumulate) ? Write::kAccumulate : Write::kOverwrite;
  return to;
}

}  // namespace qkv::c
