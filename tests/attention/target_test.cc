// SPDX-License-Identifier: Apache-2.0
#include "kernels/target.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/target.h>

#include "dense/paths.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/asked_target.h"

// CTest runs this program without QKV_TARGET, and many of its tests again with it.
namespace qkv::test {
namespace {

std::string default_path(DType dtype, const Score& score) {
  const Tensor x = normal({4, 8}, 1, dtype);
  Context context;
  return std::string(Plan({x, x, x}, {.score = score}, context).path());
}

TEST(Target, IsTheRequestedOne) {
  const std::string target =
      asked_target().empty() ? std::string(cpu_targets().front()) : asked_target();
  EXPECT_EQ(cpu_target(), target);
  const std::string path = target == "reference" ? target : "dot/" + target;
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    EXPECT_EQ(default_path(dtype, ScaledDot{}), path) << name_of(dtype);
    EXPECT_EQ(default_path(dtype, Dot{}), path) << name_of(dtype);
  }
}

// Whatever target is requested, the list of targets is in order and ends with the reference.
TEST(Target, AreListedBestFirst) {
  const auto targets = cpu_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "reference");
  std::vector<std::string> order{"amx",  "avx512bf16", "avx512",       "avx2",
                                 "sse4", "neon",       "amx-emulated", "reference"};
  // Where VDPBF16PS is slow, avx512bf16 comes after avx512.
  const auto avx512 = std::find(targets.begin(), targets.end(), "avx512");
  if (std::find(targets.begin(), avx512, "avx512bf16") == avx512) std::swap(order[1], order[2]);
  auto at = order.begin();
  for (const std::string_view target : targets) {
    at = std::find(at, order.end(), target);
    ASSERT_NE(at, order.end()) << target << " is unknown or out of order";
    ++at;
  }
}

#if defined(__x86_64__)
// Where VDPBF16PS is slow, avx512 is preferred to avx512bf16. The order of the other targets does
// not change.
TEST(Target, Avx512ComesBeforeAvx512Bf16WhereThatIsSlow) {
  using kernels::Target;
  const kernels::TargetOrder fast{Target::kAmx,  Target::kAvx512Bf16, Target::kAvx512,
                                  Target::kAvx2, Target::kSse4,       Target::kEmulatedAmx};
  const kernels::TargetOrder slow{Target::kAmx,  Target::kAvx512, Target::kAvx512Bf16,
                                  Target::kAvx2, Target::kSse4,   Target::kEmulatedAmx};
  EXPECT_EQ(kernels::ordered_targets(false), fast);
  EXPECT_EQ(kernels::ordered_targets(true), slow);
}
#endif

// Without QKV_TARGET every target can be forced, so that tests reach all of them.
TEST(Target, EveryTargetIsAPath) {
  if (!asked_target().empty()) GTEST_SKIP() << "QKV_TARGET is " << asked_target();
  std::vector<std::string> want;
  for (const std::string_view target : cpu_targets()) {
    want.push_back(target == "reference" ? "reference" : "dot/" + std::string(target));
  }
  std::vector<std::string> paths = all_paths(ScoreKind::kDot, DType::kBFloat16);
  std::sort(paths.begin(), paths.end());
  std::sort(want.begin(), want.end());
  EXPECT_EQ(paths, want);
}

// The paths that a context may force are the implementations, in the order in which attention tries
// them.
TEST(Target, EachPathHasAnImplementation) {
  std::vector<std::string_view> paths, implementations;
  for (const dense::Path& path : dense::kPaths) paths.push_back(path.name);
  for (const attn::Implementation* one : attn::implementations()) {
    implementations.push_back(one->name);
  }
  EXPECT_EQ(implementations, paths);
}

// This test runs with QKV_TARGET=warp and is registered separately.
TEST(UnknownTarget, IsAnErrorThatListsTheTargets) {
  if (asks_for_known_target() || asked_target().empty()) {
    GTEST_SKIP() << "QKV_TARGET is not an unknown name";
  }
  const auto expect_error = [](const auto& call) {
    try {
      call();
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.argument(), "QKV_TARGET");
      EXPECT_NE(text.find("\"" + asked_target() + "\""), std::string::npos) << text;
      for (const std::string_view target : cpu_targets()) {
        EXPECT_NE(text.find(target), std::string::npos) << text;
      }
    }
  };
  expect_error([] { (void)cpu_target(); });
  const Tensor x = normal({4, 8}, 1);
  Tensor out(DType::kFloat32, {4, 8});
  Tensor lse(DType::kFloat32, Dims(4));
  expect_error([&] { attention({x, x, x}, {}, {.out = out}); });
  expect_error([&] { attention_backward({x, x, x}, {}, {out, lse}, {.out = x}, {.q = out}); });
  Context context;
  expect_error([&] { const Plan plan({x, x, x}, {}, context); });
}

}  // namespace
}  // namespace qkv::test
