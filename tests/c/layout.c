// SPDX-License-Identifier: Apache-2.0
// The layout of the structs of qkv/c.h, as C has it. Programs that were compiled with an older
// header rely on it: these numbers never change, and new fields come after the last one.
#include <stddef.h>
#include <stdint.h>

#include <qkv/c.h>

// A struct of fixed size.
#define HAS_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
// A struct that may grow at its end, and its last field in version 0.1.
#define HAS_LAST(type, field, offset, bytes)                         \
  _Static_assert(offsetof(type, field) == (offset), #type);          \
  _Static_assert(sizeof(type) >= (bytes), #type " must not shrink"); \
  _Static_assert(offsetof(type, struct_size) == 0, #type)
#define IS_AT(type, field, offset) \
  _Static_assert(offsetof(type, field) == (offset), #type "." #field)

HAS_SIZE(qkv_status, 4);
HAS_SIZE(qkv_tensor, 144);
IS_AT(qkv_tensor, data, 0);
IS_AT(qkv_tensor, dtype, 8);
IS_AT(qkv_tensor, rank, 12);
IS_AT(qkv_tensor, sizes, 16);
IS_AT(qkv_tensor, strides, 80);

HAS_SIZE(qkv_shard, 40);
IS_AT(qkv_shard, given, 0);
IS_AT(qkv_shard, reserved, 4);
IS_AT(qkv_shard, first_query, 8);
IS_AT(qkv_shard, queries, 16);
IS_AT(qkv_shard, first_key, 24);
IS_AT(qkv_shard, keys, 32);

HAS_LAST(qkv_inputs, shard, 1016, 1056);
IS_AT(qkv_inputs, q, 8);
IS_AT(qkv_inputs, k, 152);
IS_AT(qkv_inputs, v, 296);
IS_AT(qkv_inputs, cu_seqlens_q, 440);
IS_AT(qkv_inputs, cu_seqlens_k, 584);
IS_AT(qkv_inputs, block_tables, 728);
IS_AT(qkv_inputs, context_lens, 872);

HAS_SIZE(qkv_qk_norm, 304);
IS_AT(qkv_qk_norm, given, 0);
IS_AT(qkv_qk_norm, reserved, 4);
IS_AT(qkv_qk_norm, eps, 8);
IS_AT(qkv_qk_norm, q, 16);
IS_AT(qkv_qk_norm, k, 160);

HAS_SIZE(qkv_rotary, 456);
IS_AT(qkv_rotary, pairs, 0);
IS_AT(qkv_rotary, reserved, 4);
IS_AT(qkv_rotary, base, 8);
IS_AT(qkv_rotary, width, 16);
IS_AT(qkv_rotary, frequencies, 24);
IS_AT(qkv_rotary, q_positions, 168);
IS_AT(qkv_rotary, k_positions, 312);

HAS_SIZE(qkv_bilinear, 144);
IS_AT(qkv_bilinear, w, 0);

HAS_SIZE(qkv_additive, 576);
IS_AT(qkv_additive, wq, 0);
IS_AT(qkv_additive, wk, 144);
IS_AT(qkv_additive, v, 288);
IS_AT(qkv_additive, b, 432);

HAS_SIZE(qkv_diagonal, 160);
IS_AT(qkv_diagonal, kind, 0);
IS_AT(qkv_diagonal, reserved, 4);
IS_AT(qkv_diagonal, offset, 8);
IS_AT(qkv_diagonal, offsets, 16);

HAS_SIZE(qkv_window, 16);
IS_AT(qkv_window, left, 0);
IS_AT(qkv_window, right, 8);

HAS_SIZE(qkv_dropout, 24);
IS_AT(qkv_dropout, p, 0);
IS_AT(qkv_dropout, seed, 8);
IS_AT(qkv_dropout, seed_given, 16);
IS_AT(qkv_dropout, reserved, 20);

HAS_LAST(qkv_options, dropout, 2560, 2584);
IS_AT(qkv_options, qk_norm, 8);
IS_AT(qkv_options, rotary, 312);
IS_AT(qkv_options, score, 768);
IS_AT(qkv_options, scale_given, 772);
IS_AT(qkv_options, scale, 776);
IS_AT(qkv_options, bilinear, 784);
IS_AT(qkv_options, additive, 928);
IS_AT(qkv_options, softcap, 1504);
IS_AT(qkv_options, bias, 1512);
IS_AT(qkv_options, diagonal, 1656);
IS_AT(qkv_options, alibi, 1816);
IS_AT(qkv_options, causal, 1960);
IS_AT(qkv_options, reserved, 1964);
IS_AT(qkv_options, window, 1968);
IS_AT(qkv_options, keep, 1984);
IS_AT(qkv_options, padding, 2128);
IS_AT(qkv_options, key_lengths, 2272);
IS_AT(qkv_options, sinks, 2416);

HAS_SIZE(qkv_rows, 288);
IS_AT(qkv_rows, rows, 0);
IS_AT(qkv_rows, matrix, 144);

HAS_SIZE(qkv_column_sums, 288);
IS_AT(qkv_column_sums, rows, 0);
IS_AT(qkv_column_sums, sums, 144);

HAS_SIZE(qkv_top, 296);
IS_AT(qkv_top, count, 0);
IS_AT(qkv_top, weights, 8);
IS_AT(qkv_top, keys, 152);

HAS_LAST(qkv_outputs, masked_scores, 2608, 2896);
IS_AT(qkv_outputs, out, 8);
IS_AT(qkv_outputs, lse, 152);
IS_AT(qkv_outputs, row_max, 296);
IS_AT(qkv_outputs, entropy, 440);
IS_AT(qkv_outputs, column_sums, 584);
IS_AT(qkv_outputs, value_sums, 872);
IS_AT(qkv_outputs, pooled, 1016);
IS_AT(qkv_outputs, top, 1160);
IS_AT(qkv_outputs, weights, 1456);
IS_AT(qkv_outputs, dropped_weights, 1744);
IS_AT(qkv_outputs, raw_scores, 2032);
IS_AT(qkv_outputs, capped_scores, 2320);

HAS_SIZE(qkv_shape, 72);
IS_AT(qkv_shape, rank, 0);
IS_AT(qkv_shape, sizes, 8);

HAS_LAST(qkv_result_shapes, matrix, 224, 296);
IS_AT(qkv_result_shapes, out, 8);
IS_AT(qkv_result_shapes, rows, 80);
IS_AT(qkv_result_shapes, keys, 152);

HAS_LAST(qkv_saved, lse, 152, 296);
IS_AT(qkv_saved, out, 8);

HAS_LAST(qkv_output_gradients, weights, 296, 584);
IS_AT(qkv_output_gradients, out, 8);
IS_AT(qkv_output_gradients, lse, 152);

HAS_SIZE(qkv_qk_norm_gradients, 288);
IS_AT(qkv_qk_norm_gradients, q, 0);
IS_AT(qkv_qk_norm_gradients, k, 144);

HAS_SIZE(qkv_score_gradients, 720);
IS_AT(qkv_score_gradients, w, 0);
IS_AT(qkv_score_gradients, wq, 144);
IS_AT(qkv_score_gradients, wk, 288);
IS_AT(qkv_score_gradients, v, 432);
IS_AT(qkv_score_gradients, b, 576);

HAS_LAST(qkv_input_gradients, reserved, 1884, 1888);
IS_AT(qkv_input_gradients, q, 8);
IS_AT(qkv_input_gradients, k, 152);
IS_AT(qkv_input_gradients, v, 296);
IS_AT(qkv_input_gradients, qk_norm, 440);
IS_AT(qkv_input_gradients, score, 728);
IS_AT(qkv_input_gradients, bias, 1448);
IS_AT(qkv_input_gradients, alibi, 1592);
IS_AT(qkv_input_gradients, sinks, 1736);
IS_AT(qkv_input_gradients, accumulate, 1880);
