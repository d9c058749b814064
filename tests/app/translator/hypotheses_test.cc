// SPDX-License-Identifier: Apache-2.0
#include "translator/search/hypotheses.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "layers/logit_kernels.h"

namespace qkv::test {
namespace {

using app::Continuation;
using app::ContinuedRow;
using app::Hypotheses;
using app::Normaliser;
using Path = std::vector<std::int32_t>;

// A number that identifies a path, used as the attention for the next token.
float looked_at(const Path& path) {
  double sum = 0;
  for (const std::int32_t token : path) sum = std::fmod(7 * sum + token, 9973);
  return static_cast<float>(sum);
}

constexpr Index kVocabulary = 6;
constexpr Index kSteps = 1100;

// The likeliest continuations by log-probabilities [live,kVocabulary] of the next token.
std::vector<Continuation> likeliest_of(const Hypotheses& hypotheses,
                                       const std::vector<double>& log_probabilities) {
  std::vector<ContinuedRow<double>> rows;
  for (Index k = 0; k < hypotheses.live(); ++k) {
    rows.push_back({log_probabilities.data() + k * kVocabulary,
                    Normaliser{.largest = 0, .log_sum = 0}, hypotheses.log_probability(k)});
  }
  const Context context;
  return app::likeliest<double>(rows, kVocabulary, Hypotheses::continuations(hypotheses.options()),
                                layers::logit_kernels_in_use<double>(context, "test"));
}

// Returns the best translation of a search that is so long that beams of 2 and more remove
// unreachable nodes, and beams of 7 and more do so more than once. Before the last steps, only one
// hypothesis ends: the likeliest, at step `end`. Later continuations are less likely.
app::Translation best_of(Index beam, Index end) {
  std::mt19937_64 random(static_cast<std::uint64_t>(beam));
  Hypotheses hypotheses({.beam = beam}, kSteps);
  std::vector<Path> paths(1);
  while (!hypotheses.done()) {
    std::vector<double> log_probabilities;
    std::vector<float> attention;
    for (std::size_t k = 0; k < paths.size(); ++k) {
      const Index step = std::ssize(paths[k]);
      for (Index v = 0; v < kVocabulary; ++v) {
        double value = (step > end ? -9 : -1) - static_cast<double>(random() % 1000) / 500;
        if (v == 2 && step < kSteps - 3) value = step == end && k == 0 ? 0 : -1e6;
        log_probabilities.push_back(value);
      }
      attention.push_back(static_cast<float>(step));
      attention.push_back(looked_at(paths[k]));
    }
    // The attention is over two source tokens, the second of which is the end token.
    hypotheses.advance(likeliest_of(hypotheses, log_probabilities), attention, 2);
    std::vector<Path> next;
    for (Index k = 0; k < hypotheses.live(); ++k) {
      next.push_back(paths[static_cast<std::size_t>(hypotheses.parent(k))]);
      next.back().push_back(hypotheses.last_token(k));
    }
    paths = std::move(next);
  }
  return hypotheses.best(2);
}

TEST(Hypotheses, RowsFollowTheirPathWhateverIsForgotten) {
  for (const Index beam : {2, 7, 30}) {
    for (const Index end : {Index{100}, kSteps}) {
      const app::Translation best = best_of(beam, end);
      if (end == kSteps) {
        EXPECT_GT(std::ssize(best.tokens), kSteps - 5) << beam;
      } else {
        EXPECT_EQ(std::ssize(best.tokens), end + 1) << beam;
      }
      Path path;
      for (std::size_t i = 0; i < best.tokens.size(); ++i) {
        EXPECT_EQ(best.attention.values<float>()[2 * i], static_cast<float>(i)) << beam;
        EXPECT_EQ(best.attention.values<float>()[2 * i + 1], looked_at(path)) << beam << " " << i;
        path.push_back(best.tokens[i]);
      }
    }
  }
}

// A likely hypothesis is continued although `beam` unlikely ones have ended.
TEST(Hypotheses, AFinishedBeamWaitsForTheBest) {
  constexpr std::int32_t kWord = 3, kEnd = 2;
  for (const double penalty : {0.0, 1.0}) {
    Hypotheses hypotheses({.beam = 2, .length_penalty = penalty, .attention = false}, 10);
    for (int step = 1; step <= 4; ++step) {
      const double likely = -0.01 * step, unlikely = -5 - step;
      ASSERT_FALSE(hypotheses.done()) << step;
      hypotheses.advance(std::vector<Continuation>{{0, kWord, likely}, {0, kEnd, unlikely}}, {}, 2);
    }
    ASSERT_FALSE(hypotheses.done());
    hypotheses.advance(std::vector<Continuation>{{0, kEnd, -0.05}, {0, kWord, -9}}, {}, 2);
    EXPECT_TRUE(hypotheses.done());
    const app::Translation best = hypotheses.best(2);
    EXPECT_EQ(best.tokens, (Path{kWord, kWord, kWord, kWord, kEnd}));
    EXPECT_EQ(best.log_probability, -0.05);
  }
}

}  // namespace
}  // namespace qkv::test
