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

// One overload for each alternative of the lists Score, Diagonal and Mask: one more does not
// compile until it is here. Those of masks say whether C has the mask, besides those set before.

void put(const ScaledDot&, qkv_options& to) { to.score = QKV_SCALED_DOT; }
void put(const Dot&, qkv_options& to) { to.score = QKV_DOT; }
void put(const Cosine&, qkv_options& to) { to.score = QKV_COSINE; }
void put(const Bilinear& score, qkv_options& to) {
  to.score = QKV_BILINEAR;
  to.bilinear.w = as_c(score.w);
}
void put(const Additive& score, qkv_options& to) {
  to.score = QKV_ADDITIVE;
  to.additive = {as_c(score.wq), as_c(score.wk), as_c(score.v), as_c(score.b)};
}

void put(const BottomRight&, qkv_options& to) { to.diagonal.kind = QKV_BOTTOM_RIGHT; }
void put(const TopLeft&, qkv_options& to) { to.diagonal.kind = QKV_TOP_LEFT; }
void put(const Offset& diagonal, qkv_options& to) {
  to.diagonal.kind = QKV_OFFSET;
  to.diagonal.offset = diagonal.o;
}
void put(const Offsets& diagonal, qkv_options& to) {
  to.diagonal.kind = QKV_OFFSETS;
  to.diagonal.offsets = as_c(diagonal.o);
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
  to.window = {window.left, window.right};
  return true;
}
bool put(const Keep& mask, qkv_options& to) { return put_array(mask.keep, to.keep); }
bool put(const Padding& mask, qkv_options& to) { return put_array(mask.padding, to.padding); }
bool put(const KeyLengths& mask, qkv_options& to) {
  return put_array(mask.lengths, to.key_lengths);
}
bool put(const MaskMod&, qkv_options&) { return false; }

template <class AnyView>
qkv_rows rows_as_c(const BasicRows<AnyView>& rows) {
  return {as_c(rows.rows), as_c(ConstView(rows.matrix))};
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

// The bindings below name every member: one more does not compile until it is here.

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
  if (shard) {
    to.shard = {1, 0, shard->first_query, shard->queries, shard->first_key, shard->keys};
  }
  return to;
}

std::optional<qkv_options> as_c(const Options& options) {
  qkv_options to;
  expect_ok(qkv_options_init(&to, sizeof to));
  const auto& [qk_norm, rotary, score, scale, softcap, mods, bias, diagonal, alibi, masks, sinks,
               dropout] = options;
  if (!mods.empty()) return std::nullopt;
  if (qk_norm) to.qk_norm = {1, 0, qk_norm->eps, as_c(qk_norm->q), as_c(qk_norm->k)};
  if (rotary) {
    const bool halves = rotary->pairs == RotaryPairing::kHalves;
    to.rotary = {halves ? QKV_HALVES : QKV_NEIGHBOURS,
                 0,
                 rotary->base,
                 rotary->width,
                 as_c(rotary->frequencies),
                 as_c(rotary->q_positions),
                 as_c(rotary->k_positions)};
  }
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
  to.dropout.p = dropout.p;
  if (dropout.seed) {
    to.dropout.seed_given = 1;
    to.dropout.seed = *dropout.seed;
  }
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
  to.column_sums = {as_c(column_sums.rows), as_c(column_sums.sums)};
  to.value_sums = as_c(value_sums);
  to.pooled = as_c(pooled);
  to.top = {top.count, as_c(top.weights), as_c(top.keys)};
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
  to.out = as_c(saved.out);
  to.lse = as_c(saved.lse);
  return to;
}

qkv_output_gradients as_c(const OutputGradients& gradients) {
  qkv_output_gradients to;
  expect_ok(qkv_output_gradients_init(&to, sizeof to));
  to.out = as_c(gradients.out);
  to.lse = as_c(gradients.lse);
  to.weights = rows_as_c(gradients.weights);
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
  to.qk_norm = {as_c(qk_norm.q), as_c(qk_norm.k)};
  if (const auto* bilinear = std::get_if<BilinearGradient>(&score)) to.score.w = as_c(bilinear->w);
  if (const auto* additive = std::get_if<AdditiveGradient>(&score)) {
    to.score.wq = as_c(additive->wq);
    to.score.wk = as_c(additive->wk);
    to.score.v = as_c(additive->v);
    to.score.b = as_c(additive->b);
  }
  to.bias = as_c(bias);
  to.alibi = as_c(alibi);
  to.sinks = as_c(sinks);
  to.accumulate = write == Write::kAccumulate ? 1 : 0;
  return to;
}

}  // namespace qkv::test
