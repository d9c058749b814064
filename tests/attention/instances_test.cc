// SPDX-License-Identifier: Apache-2.0
#include "core/instances.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/mods.h>

// The compiled instances of user functions: those of every target that this CPU supports are
// bit-identical with the baseline's, and touch nothing outside their tile.
namespace qkv::test {
namespace {

using core::instance_for;
using detail::InstanceTarget;
using detail::MaskTile;
using detail::ScoreTile;

const char* name_of(InstanceTarget target) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(target)];
}

std::vector<InstanceTarget> targets_of_this_cpu() {
  std::vector<InstanceTarget> targets;
  const ScoreMod mod = score_mod([](auto s, At) { return s; });
  for (const auto& instance :
       std::span(mod.instances, static_cast<std::size_t>(mod.instance_count))) {
    if (instance.target <= core::best_instance_target()) targets.push_back(instance.target);
  }
  return targets;
}

// All NaNs count as equal: which of two NaNs a sum keeps, with its sign, depends on the order in
// which the compiler adds them.
template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const T& x, const T& y) {
    return std::memcmp(&x, &y, sizeof(T)) == 0 || (std::isnan(x) && std::isnan(y));
  });
}

// ---- scores ---------------------------------------------------------------------------------

constexpr std::int32_t kRows = 3;
constexpr Index kStride = 160;
constexpr At kCorner{1, 2, 37, 11};

// Scores of every size, including special values.
template <class T>
std::vector<T> some_scores() {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0, 8);
  std::vector<T> x(static_cast<std::size_t>(kRows * kStride));
  for (T& value : x) value = static_cast<T>(normal(random));
  const double special[] = {0.0, -0.0, 1e-30, -1e-39, 1e30, INFINITY, -INFINITY, NAN};
  for (std::size_t n = 0; n < std::size(special); ++n) x[n * 19] = static_cast<T>(special[n]);
  return x;
}

template <class T>
void call(const detail::ScoreInstance& instance, const ScoreMod& mod, const ScoreTile<T>& tile) {
  if constexpr (std::is_same_v<T, float>) {
    instance.f32(mod.callable.get(), tile);
  } else {
    instance.f64(mod.callable.get(), tile);
  }
}

template <class T>
struct Answer {
  std::vector<T> scores;
  std::vector<T> slopes;  // derivatives of the scores
};

template <class T>
Answer<T> answer(const ScoreMod& mod, InstanceTarget target, std::int32_t cols, bool with_slopes) {
  Answer<T> a{some_scores<T>(), std::vector<T>(static_cast<std::size_t>(kRows * kStride), T(0.7))};
  call<T>(instance_for(mod, target), mod,
          {kCorner,
           {},
           kRows,
           cols,
           kStride,
           a.scores.data(),
           with_slopes ? a.slopes.data() : nullptr});
  return a;
}

template <class T>
void expect_baseline_bits(const char* name, const ScoreMod& mod) {
  for (InstanceTarget target : targets_of_this_cpu()) {
    for (std::int32_t cols : {1, 7, 16, 33, 64, 150}) {
      for (bool with_slopes : {false, true}) {
        const Answer<T> want = answer<T>(mod, InstanceTarget::kBaseline, cols, with_slopes);
        const Answer<T> got = answer<T>(mod, target, cols, with_slopes);
        EXPECT_TRUE(same_bytes(got.scores, want.scores) && same_bytes(got.slopes, want.slopes))
            << name << " on " << name_of(target) << ", " << cols << " columns, " << sizeof(T) * 8
            << " bits, slopes " << with_slopes;
      }
    }
  }
}

TEST(Instances, OfScoresGiveTheBitsOfTheBaseline) {
  const std::vector<float> table(400, 0.375F);
  const std::vector<float> slope{0.5F, 0.3F, 0.1F};
  const float c = 1.1F;
  const std::pair<const char*, ScoreMod> mods[] = {
      {"line", score_mod([=](auto s, At) { return s * c + 0.3F; })},
      {"decay", score_mod([p = slope.data()](auto s, At at) {
         return s - p[at.h] * static_cast<float>(abs(at.i - at.j));
       })},
      {"table", score_mod([p = table.data()](auto s, At at) { return s + p[at.i - at.j + 200]; })},
      {"own table", score_mod([table](auto s, At at) {
         return s + table[static_cast<std::size_t>(at.i - at.j + 200)];
       })},
      {"select", score_mod([](auto s, At at) { return select(at.j > at.i, s * 2, s); })},
      {"branch", score_mod([](auto s, At) { return s > 0 ? s : s * 0.5F; })},
      {"quadratic", score_mod([](auto s, At) { return s * s * 0.1F + s * 0.7F - 0.2F; })},
      {"division", score_mod([](auto s, At at) { return s / (1 + s * s) + at.b; })},
      {"libm", score_mod([](auto s, At) { return exp(-s * s) + tanh(s); })},
      {"soft-cap", score_mod([](auto s, At) { return soft_cap(s, 5.3F); })}};
  for (const auto& [name, mod] : mods) {
    expect_baseline_bits<float>(name, mod);
    expect_baseline_bits<double>(name, mod);
  }
}

TEST(Instances, TouchTheirTileOnly) {
  const ScoreMod mod = score_mod([](auto s, At) { return s + 1; });
  for (InstanceTarget target : targets_of_this_cpu()) {
    const std::vector<float> before = some_scores<float>();
    const Answer<float> after = answer<float>(mod, target, 33, true);
    for (std::size_t n = 0; n < before.size(); ++n) {
      if (static_cast<Index>(n) % kStride < 33) continue;
      EXPECT_EQ(std::memcmp(&after.scores[n], &before[n], sizeof(float)), 0) << n;
      EXPECT_EQ(after.slopes[n], 0.7F);
    }
  }
}

// ---- masks ----------------------------------------------------------------------------------

std::vector<std::uint8_t> allowed_by(const MaskMod& mask, InstanceTarget target,
                                     std::int32_t cols) {
  std::vector<std::uint8_t> allowed(static_cast<std::size_t>(kRows * kStride), 1);
  for (std::size_t n = 0; n < allowed.size(); n += 5) allowed[n] = 0;
  instance_for(mask, target)
      .apply(mask.callable.get(), {kCorner, {}, kRows, cols, kStride, allowed.data()});
  return allowed;
}

// Compares a mask's instances with the function itself, pair by pair.
template <class F>
void expect_answers(const char* name, const F& f) {
  const MaskMod mask = mask_mod(f);
  for (InstanceTarget target : targets_of_this_cpu()) {
    for (std::int32_t cols : {1, 7, 33, 64, 150}) {
      const auto got = allowed_by(mask, target, cols);
      for (std::size_t n = 0; n < got.size(); ++n) {
        const auto row = static_cast<std::int32_t>(n / kStride);
        const auto col = static_cast<std::int32_t>(n % kStride);
        // Forbidden pairs (every fifth) stay forbidden; pairs outside the tile are not touched.
        const bool want = n % 5 != 0 && (col >= cols || f(detail::shifted(kCorner, row, col)));
        ASSERT_EQ(got[n], want ? 1 : 0)
            << name << " on " << name_of(target) << ", " << cols << " columns, element " << n;
      }
    }
  }
}

TEST(Instances, OfMasksGiveTheAnswersOfTheFunction) {
  std::vector<int> document(400);
  for (std::size_t n = 0; n < document.size(); ++n) document[n] = static_cast<int>(n / 37);
  expect_answers("causal", [](At at) { return at.j <= at.i; });
  expect_answers("window", [](At at) { return at.i - 9 <= at.j && at.j <= at.i + 3; });
  expect_answers("document", [p = document.data()](At at) { return p[at.i] == p[at.j]; });
  expect_answers("own document", [document](At at) {
    return document[static_cast<std::size_t>(at.i)] == document[static_cast<std::size_t>(at.j)];
  });
  expect_answers("dilated", [](At at) { return (at.i - at.j) % 4 == 0; });
  expect_answers("prefix", [](At at) { return at.j < 20 || at.j <= at.i; });
  expect_answers("head", [](At at) { return at.h == 2 && at.b == 1; });
}

// ---- the tables -----------------------------------------------------------------------------

TEST(Instances, AreFoundByTarget) {
  const ScoreMod mod = score_mod([](auto s, At) { return s; });
  ASSERT_GE(mod.instance_count, 1);
  EXPECT_EQ(mod.instances[0].target, InstanceTarget::kBaseline);
#if defined(__x86_64__)
  EXPECT_EQ(mod.instance_count, 3);
  EXPECT_EQ(mask_mod([](At) { return true; }).instance_count, 3);
#endif
  for (InstanceTarget wanted :
       {InstanceTarget::kBaseline, InstanceTarget::kAvx2, InstanceTarget::kAvx512}) {
    EXPECT_LE(instance_for(mod, wanted).target, wanted);
#if defined(__x86_64__)
    EXPECT_EQ(instance_for(mod, wanted).target, wanted);
#endif
  }
  // A function from an older program, whose table has only the baseline, works for every target.
  ScoreMod old = mod;
  old.instance_count = 1;
  EXPECT_EQ(instance_for(old, InstanceTarget::kAvx512).target, InstanceTarget::kBaseline);
  std::string names;
  for (InstanceTarget target : targets_of_this_cpu()) names += std::string(" ") + name_of(target);
  std::printf("instances run:%s\n", names.c_str());
}

}  // namespace
}  // namespace qkv::test
