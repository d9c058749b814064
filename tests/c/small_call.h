// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_C_SMALL_CALL_H_
#define QKV_TESTS_C_SMALL_CALL_H_

#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include <qkv/c.h>

namespace qkv::test {

// A call of qkv_attention() and one of qkv_attention_backward() that succeed, for tests to change.
struct SmallCall {
  static constexpr std::array<std::int64_t, 4> kShape{1, 2, 3, 4};

  SmallCall() {
    for (std::size_t n = 0; n < x.size(); ++n) x[n] = static_cast<float>(n % 5);
    for (float& one : dout) one = 1;
    const auto array = [](qkv_tensor& tensor, float* data, std::int32_t rank) {
      EXPECT_EQ(qkv_tensor_init(&tensor, data, QKV_FLOAT32, rank, kShape.data()), QKV_OK);
    };
    EXPECT_EQ(qkv_inputs_init(&inputs, sizeof inputs), QKV_OK);
    EXPECT_EQ(qkv_options_init(&options, sizeof options), QKV_OK);
    EXPECT_EQ(qkv_outputs_init(&outputs, sizeof outputs), QKV_OK);
    EXPECT_EQ(qkv_saved_init(&saved, sizeof saved), QKV_OK);
    EXPECT_EQ(qkv_output_gradients_init(&from, sizeof from), QKV_OK);
    EXPECT_EQ(qkv_input_gradients_init(&to, sizeof to), QKV_OK);
    array(inputs.q, x.data(), 4);
    inputs.k = inputs.v = inputs.q;
    array(outputs.out, out.data(), 4);
    array(outputs.lse, lse.data(), 3);
    saved.out = outputs.out;
    saved.lse = outputs.lse;
    array(from.out, dout.data(), 4);
    array(to.q, dq.data(), 4);
  }
  SmallCall(const SmallCall&) = delete;
  SmallCall& operator=(const SmallCall&) = delete;

  qkv_status forward(qkv_context* context = nullptr) const {
    return qkv_attention(&inputs, &options, &outputs, context);
  }
  qkv_status backward(qkv_context* context = nullptr) const {
    return qkv_attention_backward(&inputs, &options, &saved, &from, &to, context);
  }

  std::array<float, 24> x{}, out{}, dout{}, dq{};
  std::array<float, 6> lse{};
  qkv_inputs inputs;
  qkv_options options;
  qkv_outputs outputs;
  qkv_saved saved;
  qkv_output_gradients from;
  qkv_input_gradients to;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_C_SMALL_CALL_H_
