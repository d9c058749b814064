// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/c.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/random_call.h"
#include "tests/c/as_c.h"
#include "tests/support/scale.h"

// Tests that random calls have bit-identical results through C++ and through C.
namespace qkv::test {
namespace {

constexpr std::uint64_t kSeed = 1;

void expect_equal(const std::map<std::string, Guarded>& got,
                  const std::map<std::string, Guarded>& want, const std::string& call) {
  ASSERT_EQ(got.size(), want.size()) << call;
  for (const auto& [name, array] : got) {
    EXPECT_TRUE(array.intact()) << name << " of " << call;
    if (array.view().element_count() == 0) continue;
    EXPECT_TRUE(same_bits(array, want.at(name))) << name << " of " << call;
  }
}

TEST(RandomCallsInC, HaveTheResultsOfCpp) {
  const std::uint64_t calls = at_scale<std::uint64_t>(400, 20);
  std::uint64_t compared = 0;
  for (std::uint64_t n = 0; n < calls; ++n) {
    const RandomCall call(kSeed, n);
    const auto options = as_c(call.options());
    if (!options) continue;
    const Results want(call, -777), got(call, -777);
    attention(call.inputs(), call.options(), want.outputs());
    const qkv_inputs inputs = as_c(call.inputs());
    const qkv_outputs outputs = as_c(got.outputs());
    ASSERT_EQ(qkv_attention(&inputs, &*options, &outputs, nullptr), QKV_OK) << qkv_last_error();
    expect_equal(got.arrays(), want.arrays(), call.describe());
    ++compared;
  }
  EXPECT_GT(compared, calls / 2);
}

TEST(RandomCallsInC, HaveTheGradientsOfCpp) {
  const std::uint64_t calls = at_scale<std::uint64_t>(400, 20);
  std::uint64_t compared = 0;
  for (std::uint64_t n = 0; n < calls; ++n) {
    const RandomBackward random(kSeed, n);
    const BackwardCall& call = random.call();
    const auto options = as_c(call.options);
    if (!options) continue;
    const SavedTensors saved(call, kReferencePath);
    const Gradients want(call), got(call);
    attention_backward(call.inputs, call.options, saved.views(), call.sources, want.views());
    const qkv_inputs inputs = as_c(call.inputs);
    const qkv_saved saved_in_c = as_c(saved.views());
    const qkv_output_gradients from = as_c(call.sources);
    const qkv_input_gradients to = as_c(got.views());
    ASSERT_EQ(qkv_attention_backward(&inputs, &*options, &saved_in_c, &from, &to, nullptr), QKV_OK)
        << qkv_last_error();
    expect_equal(got.arrays(), want.arrays(), random.describe());
    ++compared;
  }
  EXPECT_GT(compared, calls / 2);
}

}  // namespace
}  // namespace qkv::test
