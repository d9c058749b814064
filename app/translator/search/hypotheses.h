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
  // The number of live hypotheses, at most the beam. They are sorted, best first.
  Index live() const noexcept { return static_cast<Index>(live_.size()); }
  std::int32_t last_token(Index hypothesis) const;
  // The hypothesis of the previous step that this one continues, as its index among the live
  // hypotheses of that step.
  Index parent(Index hypothesis) const;

  double log_probability(Index hypothesis) const;

  // The number of continuations that a step needs: twice the beam, since each hypothesis has one
  // continuation that ends it, so that at least `beam` others remain. With beam 1 the number is 1:
  // if that continuation ends the hypothesis, the search is over.
  static Index continuations(const SearchOptions& options) noexcept;
  // Takes one step with the `best` continuations, at most continuations() of them, best first. Row
  // k of `attention` [live,Ts] has the weights of the live hypothesis k before the step. It must
  // be given if the options request attention, or if they request the sources of unknown tokens and
  // a continuation's token is Vocabulary::kUnknown; otherwise it may be empty.
  void advance(std::span<const Continuation> best, std::span<const float> attention, Index Ts);

  // The translation, once done(), with `Ts` attention weights per token if the options request
  // attention.
  Translation best(Index Ts) const;

 private:
  // A token, linked to the token before it.
  struct Node {
    Index before = -1;  // the index of the node of the token before; -1: none
    std::int32_t token = 0;
    // The position of the source token with the largest weight, the end token excepted.
    std::int32_t looked_at = 0;
    std::vector<float> attention{};
  };
  struct Hypothesis {
    Index node = -1;  // the index of the last token's node; -1: no token yet
    Index parent = 0;
    Index tokens = 0;  // the number of tokens
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
  // The most nodes that forget_dead_ends() has left so far, but at least 1024. The function runs
  // when there are twice as many nodes.
  std::size_t most_kept_nodes_ = 1024;
  std::vector<Hypothesis> live_;
  std::vector<Hypothesis> ended_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_
