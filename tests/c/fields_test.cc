// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <qkv/c.h>

#include "tests/c/small_call.h"

// Tests that calls of qkv/c.h refuse wrong values of fields with a message that names the field,
// and that a refused call writes nothing to out or dq.
namespace qkv::test {
namespace {

struct Refused {
  void (*change)(SmallCall& call);
  const char* message;
  qkv_status status = QKV_INVALID_ARGUMENT;
};

// Each change is made to a new SmallCall.
const Refused kRefused[] = {
    // ---- arrays
    {[](SmallCall& x) { x.inputs.q.dtype = 99; }, "attention: q.dtype must be a qkv_dtype, got 99",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) { x.inputs.q.dtype = -1; }, "attention: q.dtype must be a qkv_dtype, got -1",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) { x.inputs.k.dtype = QKV_NONE; },
     "attention: k.dtype is QKV_NONE, for an absent array, but data or rank is not 0",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) { x.inputs.k = {}, x.inputs.k.rank = 4; },
     "attention: k.dtype is QKV_NONE, for an absent array, but data or rank is not 0",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) { x.inputs.k = {}; }, "attention: k is absent but q and k are always needed"},
    {[](SmallCall& x) { x.inputs.v.rank = 9; }, "attention: v.rank must be 0 to 8, got 9"},
    {[](SmallCall& x) { x.inputs.v.rank = -1; }, "attention: v.rank must be 0 to 8, got -1"},
    {[](SmallCall& x) { x.inputs.q.data = nullptr; },
     "attention: q.data is null but the shape [1,2,3,4] has elements"},
    {[](SmallCall& x) { x.inputs.q.data = reinterpret_cast<char*>(x.x.data()) + 1; },
     "attention: q.data must be aligned for its elements, got an address that is not aligned for "
     "float32 [1,2,3,4]"},
    {[](SmallCall& x) { x.inputs.q.sizes[1] = -2; },
     "attention: q.sizes must be 0 or more on each axis, got [1,-2,3,4]"},
    {[](SmallCall& x) { x.inputs.q.strides[3] = std::numeric_limits<std::int64_t>::max(); },
     "attention: q.strides must reach less than 2^63 bytes, got [24,12,4,9223372036854775807] for "
     "float32 [1,2,3,4]"},
    {[](SmallCall& x) { x.inputs.q.dtype = QKV_INT32; },
     "attention: q must be float64, float32, bfloat16 or float16, got int32 [1,2,3,4]",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) {
       x.outputs.weights.rows.rank = 9, x.outputs.weights.rows.dtype = QKV_INT64;
     },
     "attention: weights.rows.rank must be 0 to 8, got 9"},
    // ---- inputs
    {[](SmallCall& x) { x.inputs.shard.given = 2; },
     "attention: shard.given must be 0 or 1, got 2"},
    {[](SmallCall& x) { x.inputs.shard.keys = 9; },
     "attention: shard.given is 0 but other fields of shard are not"},
    {[](SmallCall& x) { x.inputs.shard.reserved = 1; },
     "attention: shard.reserved must be 0, got 1"},
    // ---- options
    {[](SmallCall& x) { x.options.score = 5; }, "attention: score must be a qkv_score, got 5"},
    {[](SmallCall& x) { x.options.scale = 0.5; }, "attention: scale_given is 0 but scale is 0.5"},
    {[](SmallCall& x) { x.options.scale_given = -1; },
     "attention: scale_given must be 0 or 1, got -1"},
    {[](SmallCall& x) { x.options.bilinear.w = x.inputs.q; },
     "attention: bilinear.w is given but the score is scaled_dot"},
    {[](SmallCall& x) { x.options.score = QKV_BILINEAR; },
     "attention: bilinear.w is absent but the score needs it"},
    {[](SmallCall& x) { x.options.score = QKV_COSINE, x.options.additive.b = x.inputs.q; },
     "attention: additive.b is given but the score is cosine"},
    {[](SmallCall& x) { x.options.qk_norm.given = 3; },
     "attention: qk_norm.given must be 0 or 1, got 3"},
    {[](SmallCall& x) { x.options.qk_norm.k = x.inputs.q; },
     "attention: qk_norm.k is given but qk_norm.given is 0"},
    {[](SmallCall& x) { x.options.qk_norm.reserved = 1; },
     "attention: qk_norm.reserved must be 0, got 1"},
    {[](SmallCall& x) { x.options.rotary.pairs = 3; },
     "attention: rotary.pairs must be a qkv_rotary_pairs, got 3"},
    {[](SmallCall& x) { x.options.rotary.width = 2; },
     "attention: rotary.width must be 0 where rotary.pairs is QKV_NO_ROTARY, got 2"},
    {[](SmallCall& x) { x.options.rotary.q_positions = x.inputs.q; },
     "attention: rotary.q_positions is given but rotary.pairs is QKV_NO_ROTARY"},
    {[](SmallCall& x) { x.options.rotary.reserved = 1; },
     "attention: rotary.reserved must be 0, got 1"},
    {[](SmallCall& x) { x.options.diagonal.kind = 4; },
     "attention: diagonal.kind must be a qkv_diagonal_kind, got 4"},
    {[](SmallCall& x) { x.options.diagonal.offset = 7; },
     "attention: diagonal.offset must be 0 where the diagonal is bottom_right, got 7"},
    {[](SmallCall& x) {
       x.options.diagonal.kind = QKV_TOP_LEFT, x.options.diagonal.offsets = x.inputs.q;
     },
     "attention: diagonal.offsets is given but the diagonal is top_left"},
    {[](SmallCall& x) { x.options.diagonal.reserved = 1; },
     "attention: diagonal.reserved must be 0, got 1"},
    {[](SmallCall& x) { x.options.causal = 2; }, "attention: causal must be 0 or 1, got 2"},
    {[](SmallCall& x) { x.options.reserved = -5; },
     "attention: options.reserved must be 0, got -5"},
    {[](SmallCall& x) { x.options.window.left = -2; },
     "attention: window.left must be -1 (unbounded) or in 0 to 2^53, got -2"},
    {[](SmallCall& x) { x.options.dropout.p = 0.5; },
     "attention: dropout.seed is absent but dropout.p is 0.5; dropout needs a seed"},
    {[](SmallCall& x) { x.options.dropout.seed = 7; },
     "attention: dropout.seed_given is 0 but dropout.seed is 7"},
    {[](SmallCall& x) { x.options.dropout.seed_given = 2; },
     "attention: dropout.seed_given must be 0 or 1, got 2"},
    {[](SmallCall& x) { x.options.dropout.reserved = 1; },
     "attention: dropout.reserved must be 0, got 1"},
};

const Refused kRefusedBackward[] = {
    {[](SmallCall& x) { x.saved.lse.rank = 9; },
     "attention_backward: saved.lse.rank must be 0 to 8, got 9"},
    {[](SmallCall& x) { x.from.weights.matrix.dtype = 77; },
     "attention_backward: output_gradients.weights.dtype must be a qkv_dtype, got 77",
     QKV_INVALID_TYPE},
    {[](SmallCall& x) { x.to.accumulate = 2; },
     "attention_backward: input_gradients.accumulate must be 0 or 1, got 2"},
    {[](SmallCall& x) { x.to.reserved = 2; },
     "attention_backward: input_gradients.reserved must be 0, got 2"},
    {[](SmallCall& x) { x.to.score.w = x.to.score.wk = x.to.q; },
     "attention_backward: input_gradients.score.w is given, but so are gradients of the additive "
     "score"},
    {[](SmallCall& x) { x.to.score.v = x.to.q; },
     "attention_backward: input_gradients.score is the gradient of additive, but the score is "
     "scaled_dot"},
};

constexpr float kBefore = -777;  // fills results before a refused call

void expect_refused(qkv_status status, const Refused& refused) {
  EXPECT_EQ(qkv_status_name(status), std::string(qkv_status_name(refused.status)));
  EXPECT_EQ(std::string(qkv_last_error()), refused.message);
  EXPECT_LE(std::string(qkv_last_error()).size(), 220U);  // the limit in c/last_error.cc
}

TEST(FieldsInC, AreRefusedByName) {
  for (const Refused& refused : kRefused) {
    SmallCall call;
    ASSERT_EQ(call.forward(), QKV_OK) << qkv_last_error();
    call.out.fill(kBefore);
    refused.change(call);
    expect_refused(call.forward(), refused);
    for (const float x : call.out) EXPECT_EQ(x, kBefore) << refused.message;
  }
}

TEST(FieldsInC, OfGradientsAreRefusedByName) {
  for (const Refused& refused : kRefusedBackward) {
    SmallCall call;
    ASSERT_EQ(call.forward(), QKV_OK) << qkv_last_error();
    ASSERT_EQ(call.backward(), QKV_OK) << qkv_last_error();
    call.dq.fill(kBefore);
    refused.change(call);
    expect_refused(call.backward(), refused);
    for (const float x : call.dq) EXPECT_EQ(x, kBefore) << refused.message;
  }
}

}  // namespace
}  // namespace qkv::test
