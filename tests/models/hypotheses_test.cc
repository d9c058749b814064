// SPDX-License-Identifier: Apache-2.0
#include "models/hypotheses.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace qkv::test {
namespace {

using app::Hypotheses;
using Path = std::vector<std::int32_t>;

// A number of a path: what is looked at for the token behind it.
float looked_at(const Path& path) {
  double sum = 0;
  for (const std::int32_t token : path) sum = std::fmod(7 * sum + token, 9973);
  return static_cast<float>(sum);
}

// So many steps that dead ends are forgotten many times; each row of attention stays with its
// token.
TEST(Hypotheses, RowsFollowTheirPathWhateverIsForgotten) {
  constexpr Index kVocabulary = 6;
  constexpr Index kSteps = 700;
  for (const Index beam : {1, 7, 30}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(beam));
    Hypotheses hypotheses({.beam = beam}, kSteps);
    std::vector<Path> paths(1);
    while (!hypotheses.done()) {
      std::vector<double> log_probabilities;
      std::vector<float> attention;
      for (const Path& path : paths) {
        for (Index v = 0; v < kVocabulary; ++v) {
          // Ends come late: only near the last step are they likely.
          const bool ends = v == 2 && std::ssize(path) < kSteps - 3;
          log_probabilities.push_back(ends ? -1e6
                                           : -1 - static_cast<double>(random() % 1000) / 500);
        }
        attention.push_back(static_cast<float>(path.size()));
        attention.push_back(looked_at(path));
      }
      hypotheses.advance(log_probabilities, kVocabulary, attention, 2);
      std::vector<Path> next;
      for (Index k = 0; k < hypotheses.live(); ++k) {
        next.push_back(paths[static_cast<std::size_t>(hypotheses.parent(k))]);
        next.back().push_back(hypotheses.last_token(k));
      }
      paths = std::move(next);
    }
    const app::Translation best = hypotheses.best(2, true);
    ASSERT_GT(best.tokens.size(), std::size_t{kSteps - 5}) << beam;
    Path path;
    for (std::size_t i = 0; i < best.tokens.size(); ++i) {
      EXPECT_EQ(best.attention.values<float>()[2 * i], static_cast<float>(i)) << beam;
      EXPECT_EQ(best.attention.values<float>()[2 * i + 1], looked_at(path)) << beam << " " << i;
      path.push_back(best.tokens[i]);
    }
  }
}

}  // namespace
}  // namespace qkv::test
