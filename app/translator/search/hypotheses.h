// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_
#define QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/search/continuations.h"

// The hypotheses of one source in a beam search.
namespace qkv::app {

class Hypotheses {
 public:
  Hypotheses(const SearchOptions& options, Index most_tokens);

  const SearchOptions& options() const noexcept { return options_; }
  // True if the translation is known.
  bool done() const noexcept { return done_; }
  // The count of live hypotheses, which are in order, best first; at most the beam.
  Index live() const noexcept { return static_cast<Index>(live_.size()); }
  std::int32_t last_token(Index hypothesis) const;
  // The hypothesis of the previous step that this one continues, as its index among the live
  // hypotheses of that step.
  Index parent(Index hypothesis) const;

  double log_probability(Index hypothesis) const;

  // The number of continuations that a step needs: twice the beam, since each hypothesis has one
  // continuation that ends it, so that at least `beam` others remain. With beam 1 it is one: if it
  // ends, the search is over.
  static Index continuations(const SearchOptions& options) noexcept;
  // Takes one step with the `best` continuations, at most continuations() of them, best first. Row
  // k of `attention` [live,Ts] belongs to the live hypothesis k before the step. `attention` must
  // be given if the options request attention, or if they request the sources of unknown tokens and
  // a continuation's token is Vocabulary::kUnknown; otherwise it may be empty.
  void advance(std::span<const Continuation> best, std::span<const float> attention, Index Ts);

  // The translation, once done(), with `Ts` attention weights per token if the options request
  // attention.
  Translation best(Index Ts) const;

 private:
  // A token, linked to the token before it.
  struct Node {
    Index before = -1;
    std::int32_t token = 0;
    // The position of the source token with the largest weight, the end token excepted.
    std::int32_t looked_at = 0;
    std::vector<float> attention{};
  };
  struct Hypothesis {
    Index node = -1;
    Index parent = 0;
    Index tokens = 0;
    double log_probability = 0;
  };
  // Removes nodes that no hypothesis reaches.
  void forget_dead_ends();
  double score(const Hypothesis& hypothesis) const;
  bool best_has_ended() const;

  SearchOptions options_;
  Index most_tokens_;
  bool done_ = false;
  std::vector<Node> nodes_;
  // The most nodes that forget_dead_ends() has kept so far, at least 1024. It runs when there are
  // twice as many.
  std::size_t most_kept_nodes_ = 1024;
  std::vector<Hypothesis> live_;
  std::vector<Hypothesis> ended_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_
