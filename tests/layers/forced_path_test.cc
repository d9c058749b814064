// SPDX-License-Identifier: Apache-2.0
// Tests Context::force_path() for layers that do not call attention().
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers/cross_entropy.h>
#include <qkv/layers/gru.h>
#include <qkv/layers/linear.h>
#include <qkv/target.h>

#include "kernels/target.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/asked_target.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/paths.h"

namespace qkv::test {
namespace {

constexpr DType kType = DType::kFloat32;

// The error messages of three layers on one path, and the bytes of each layer's result.
struct Answer {
  std::string message{};
  std::vector<std::vector<unsigned char>> bytes{};
};

Answer with_path(const std::string& path) {
  Context context = context_on(path);
  Answer answer;
  const auto add = [&](const Tensor& result, const auto& call) {
    const std::string message = error_of(call);
    answer.message += message.empty() ? "" : message + "\n";
    answer.bytes.emplace_back();
    for (const auto byte : bytes_of(result)) {
      answer.bytes.back().push_back(static_cast<unsigned char>(byte));
    }
  };
  Linear linear(70, 30);
  initialise(linear, 1);
  const Tensor x = random_tensor(kType, {9, 70}, 2);
  Linear::Saved saved;
  Tensor y(kType, {9, 30});
  add(y, [&] { linear.forward(x, saved, y, context); });

  Gru gru({.input = 70, .hidden = 5});
  initialise(gru, 3);
  Gru::Saved saved_gru;
  Tensor states(kType, {3, 3, 5});
  add(states, [&] {
    gru.forward({.x = reshape(ConstView(x), {3, 3, 70})}, saved_gru, {.out = states}, context);
  });

  const CrossEntropy loss;
  CrossEntropy::Saved saved_loss;
  Tensor losses(kType, {9});
  const std::vector<std::int64_t> targets(9, 1);
  add(losses, [&] { loss.forward(x, targets, saved_loss, {.losses = losses}, context); });
  return answer;
}

TEST(ForcedPath, AnUnknownNameIsAnError) {
  const std::string first(kernels::name_of(kernels::kTargets.front()));
  for (const char* path : {"nonsense", "avx2", "dot/", "dot/avx1", "Reference"}) {
    const std::string message = with_path(path).message;
    for (const char* call : {"Linear::forward", "Gru::forward", "CrossEntropy::forward"}) {
      EXPECT_NE(message.find(std::string(call) + ": context forces the path \"" + path +
                             "\"; valid: dot/ or additive/ with " + first),
                std::string::npos)
          << message;
    }
  }
}

// Linear's sums differ from the reference on sse4 alone, whose kernels have no fused multiply-adds.
// Gru and CrossEntropy compute exponentials, which differ from the reference on every target.
TEST(ForcedPath, RunsOnTheForcedTarget) {
  const Answer reference = with_path("reference");
  EXPECT_EQ(reference.message, "");
  for (const char* score : {"dot/", "additive/"}) {
    for (const std::string_view target : cpu_targets()) {
      if (target == "reference") continue;
      const Answer answer = with_path(score + std::string(target));
      if (!asked_target().empty() && asked_target() != target) {
        EXPECT_NE(answer.message.find("does not support the target that QKV_TARGET names"),
                  std::string::npos);
        continue;
      }
      EXPECT_EQ(answer.message, "");
      EXPECT_EQ(answer.bytes[0] == reference.bytes[0], target != "sse4") << target;
      EXPECT_NE(answer.bytes[1], reference.bytes[1]) << target;
      EXPECT_NE(answer.bytes[2], reference.bytes[2]) << target;
    }
  }
}

}  // namespace
}  // namespace qkv::test
