// SPDX-License-Identifier: Apache-2.0
#include "tests/c/as_c.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <variant>

namespace qkv::test {
namespace {

void expect_ok(qkv_status status) {
  if (status != QKV_OK) throw std::logic_error(qkv_last_error());
}

std::int32_t dtype_as_c(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return QKV_NONE;
    case DType::kFloat64:
      return QKV_FLOAT64;
    case DType::kFloat32:
      return QKV_FLOAT32;
    case DType::kBFloat16:
      return QKV_BFLOAT16;
    case DType::kFloat16:
      return QKV_FLOAT16;
    case DType::kBool:
      return QKV_BOOL;
    case DType::kInt8:
      return QKV_INT8;
    case DType::kInt16:
      return QKV_INT16;
    case DType::kInt32:
      return QKV_INT32;
    case DType::kInt64:
      return QKV_INT64;
    case DType::kUInt8:
      return QKV_UINT8;
    case DType::kUInt16:
      return QKV_UINT16;
    case DType::kUInt32:
      return QKV_UINT32;
    case DType::kUInt64:
      return QKV_UINT64;
    case DType::kQ8:
      return QKV_Q8;
    case DType::kComplex128:
      break;
  }
  throw std::invalid_argument("C has no complex128");
}

// Structured bindings name every member of the C++ structs, so that a new member does not compile
// until it is converted or refused.

// put() has an overload for each alternative of Score, Diagonal and Mask: a new alternative does
// not compile until it has one. For a mask, put() returns whether C can have it together with the
// masks that were put before.

void put(const ScaledDot&, qkv_options& to) { to.score = QKV_SCALED_DOT; }
void put(const Dot&, qkv_options& to) { to.score = QKV_DOT; }
void put(const Cosine&, qkv_options& to) { to.score = QKV_COSINE; }
void put(const Bilinear& score, qkv_options& to) {
  const auto& [w] = score;
  to.score = QKV_BILINEAR;
  to.bilinear.w = as_c(w);
}
void put(const Additive& score, qkv_options& to) {
  const auto& [wq, wk, v, b] = score;
  to.score = QKV_ADDITIVE;
  to.additive = {as_c(wq), as_c(wk), as_c(v), as_c(b)};
}

void put(const BottomRight&, qkv_options& to) { to.diagonal.kind = QKV_BOTTOM_RIGHT; }
void put(const TopLeft&, qkv_options& to) { to.diagonal.kind = QKV_TOP_LEFT; }
void put(const Offset& diagonal, qkv_options& to) {
  const auto& [o] = diagonal;
  to.diagonal.kind = QKV_OFFSET;
  to.diagonal.offset = o;
}
void put(const Offsets& diagonal, qkv_options& to) {
  const auto& [o] = diagonal;
  to.diagonal.kind = QKV_OFFSETS;
  to.diagonal.offsets = as_c(o);
}

bool put_array(const ConstView& from, qkv_tensor& to) {
  if (to.dtype != QKV_NONE || !from.given()) return false;
  to = as_c(from);
  return true;
}
bool put(const Causal&, qkv_options& to) {
  to.causal = 1;
  return true;
}
bool put(const Window& window, qkv_options& to) {
  if (to.window.left != -1 || to.window.right != -1) return false;
  const auto& [left, right] = window;
  to.window = {left, right};
  return true;
}
bool put(const Keep& mask, qkv_options& to) {
  const auto& [keep] = mask;
  return put_array(keep, to.keep);
}
bool put(const Padding& mask, qkv_options& to) {
  const auto& [padding] = mask;
  return put_array(padding, to.padding);
}
bool put(const KeyLengths& mask, qkv_options& to) {
  const auto& [lengths] = mask;
  return put_array(lengths, to.key_lengths);
}
bool put(const MaskMod&, qkv_options&) { return false; }

qkv_shard shard_as_c(const Shard& shard) {
  const auto& [first_query, queries, first_key, keys, first_head, head_step] = shard;
  if (first_head != 0 || head_step != 1) throw std::invalid_argument("C has no shards of heads");
  return {1, 0, first_query, queries, first_key, keys};
}

qkv_qk_norm norm_as_c(const QkNorm& norm) {
  const auto& [q, k, eps] = norm;
  return {1, 0, eps, as_c(q), as_c(k)};
}

qkv_rotary rotary_as_c(const Rotary& rotary) {
  const auto& [pairs, base, width, frequencies, q_positions, k_positions] = rotary;
  const bool halves = pairs == RotaryPairing::kHalves;
  return {halves ? QKV_HALVES : QKV_NEIGHBOURS,
          0,
          base,
          width,
          as_c(frequencies),
          as_c(q_positions),
          as_c(k_positions)};
}

qkv_dropout dropout_as_c(const Dropout& dropout) {
  const auto& [p, seed] = dropout;
  return {p, seed.value_or(0), seed ? 1 : 0, 0};
}

qkv_column_sums column_sums_as_c(const ColumnSums& column_sums) {
  const auto& [rows, sums] = column_sums;
  return {as_c(rows), as_c(sums)};
}

qkv_top top_as_c(const Top& top) {
  const auto& [count, weights, keys] = top;
  return {count, as_c(weights), as_c(keys)};
}

template <class AnyView>
qkv_rows rows_as_c(const BasicRows<AnyView>& listed) {
  const auto& [rows, matrix] = listed;
  return {as_c(rows), as_c(ConstView(matrix))};
}

qkv_qk_norm_gradients norm_gradient_as_c(const QkNormGradient& gradient) {
  const auto& [q, k] = gradient;
  return {as_c(q), as_c(k)};
}

// put() has an overload for each alternative of ScoreGradient, as for those of Score.
void put(const std::monostate&, qkv_score_gradients&) {}
void put(const BilinearGradient& gradient, qkv_score_gradients& to) {
  const auto& [w] = gradient;
  to.w = as_c(w);
}
void put(const AdditiveGradient& gradient, qkv_score_gradients& to) {
  const auto& [wq, wk, v, b] = gradient;
  to.wq = as_c(wq);
  to.wk = as_c(wk);
  to.v = as_c(v);
  to.b = as_c(b);
}

}  // namespace

qkv_tensor as_c(const ConstView& view) {
  qkv_tensor to{};
  to.data = const_cast<void*>(view.data());
  to.dtype = dtype_as_c(view.dtype());
  to.rank = view.rank();
  std::copy(view.shape().begin(), view.shape().end(), to.sizes);
  std::copy(view.strides().begin(), view.strides().end(), to.strides);
  return to;
}

qkv_inputs as_c(const Inputs& inputs) {
  qkv_inputs to;
  expect_ok(qkv_inputs_init(&to, sizeof to));
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, block_tables, context_lens, shard] = inputs;
  to.q = as_c(q);
  to.k = as_c(k);
  to.v = as_c(v);
  to.cu_seqlens_q = as_c(cu_seqlens_q);
  to.cu_seqlens_k = as_c(cu_seqlens_k);
  to.block_tables = as_c(block_tables);
  to.context_lens = as_c(context_lens);
  if (shard) to.shard = shard_as_c(*shard);
  return to;
}

std::optional<qkv_options> as_c(const Options& options) {
  qkv_options to;
  expect_ok(qkv_options_init(&to, sizeof to));
  const auto& [qk_norm, rotary, score, scale, softcap, mods, bias, diagonal, alibi, masks, sinks,
               dropout] = options;
  if (!mods.empty()) return std::nullopt;
  if (qk_norm) to.qk_norm = norm_as_c(*qk_norm);
  if (rotary) to.rotary = rotary_as_c(*rotary);
  std::visit([&to](const auto& one) { put(one, to); }, score);
  if (scale) {
    to.scale_given = 1;
    to.scale = *scale;
  }
  to.softcap = softcap;
  to.bias = as_c(bias);
  std::visit([&to](const auto& one) { put(one, to); }, diagonal);
  to.alibi = as_c(alibi);
  for (const Mask& mask : masks) {
    if (!std::visit([&to](const auto& one) { return put(one, to); }, mask)) return std::nullopt;
  }
  to.sinks = as_c(sinks);
  to.dropout = dropout_as_c(dropout);
  return to;
}

qkv_outputs as_c(const Outputs& outputs) {
  qkv_outputs to;
  expect_ok(qkv_outputs_init(&to, sizeof to));
  const auto& [out, lse, row_max, entropy, column_sums, value_sums, pooled, top, weights,
               dropped_weights, raw_scores, capped_scores, masked_scores] = outputs;
  to.out = as_c(out);
  to.lse = as_c(lse);
  to.row_max = as_c(row_max);
  to.entropy = as_c(entropy);
  to.column_sums = column_sums_as_c(column_sums);
  to.value_sums = as_c(value_sums);
  to.pooled = as_c(pooled);
  to.top = top_as_c(top);
  to.weights = rows_as_c(weights);
  to.dropped_weights = rows_as_c(dropped_weights);
  to.raw_scores = rows_as_c(raw_scores);
  to.capped_scores = rows_as_c(capped_scores);
  to.masked_scores = rows_as_c(masked_scores);
  return to;
}

qkv_saved as_c(const Saved& saved) {
  qkv_saved to;
  expect_ok(qkv_saved_init(&to, sizeof to));
  const auto& [out, lse] = saved;
  to.out = as_c(out);
  to.lse = as_c(lse);
  return to;
}

qkv_output_gradients as_c(const OutputGradients& gradients) {
  qkv_output_gradients to;
  expect_ok(qkv_output_gradients_init(&to, sizeof to));
  const auto& [out, lse, weights] = gradients;
  to.out = as_c(out);
  to.lse = as_c(lse);
  to.weights = rows_as_c(weights);
  return to;
}

qkv_input_gradients as_c(const InputGradients& gradients) {
  qkv_input_gradients to;
  expect_ok(qkv_input_gradients_init(&to, sizeof to));
  const auto& [q, k, v, qk_norm, score, bias, alibi, sinks, captured, write] = gradients;
  if (!captured.empty()) throw std::invalid_argument("C has no captured arrays");
  to.q = as_c(q);
  to.k = as_c(k);
  to.v = as_c(v);
  to.qk_norm = norm_gradient_as_c(qk_norm);
  std::visit([&to](const auto& one) { put(one, to.score); }, score);
  to.bias = as_c(bias);
  to.alibi = as_c(alibi);
  to.sinks = as_c(sinks);
  to.accumulate = write == Write::kAccumulate ? 1 : 0;
  return to;
}

}  // namespace qkv::test
