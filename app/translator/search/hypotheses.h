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

  // The number of continuations that a step needs. With twice the beam, `beam` hypotheses stay
  // live although each may also end.
  static Index continuations(const SearchOptions& options) noexcept;
  // Takes one step with the `best` continuations, at most continuations() of them, best first. Row
  // k of `attention` [live,Ts] belongs to hypothesis k. It may be absent unless the options request
  // attention, or request the sources of unknown tokens and one of the tokens is
  // Vocabulary::kUnknown.
  void advance(std::span<const Continuation> best, std::span<const float> attention, Index Ts);

  // The translation, once done(), with `Ts` attention weights per token if the options request
  // attention.
  Translation best(Index Ts) const;

 private:
  // A token, linked to the token before it.
  struct Node {
    Index before = -1;
    std::int32_t token = 0;
    std::int32_t looked_at = 0;  // source token with the largest attention weight
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
  bool is_ended_best() const;

  SearchOptions options_;
  Index most_tokens_;
  bool done_ = false;
  std::vector<Node> nodes_;
  // The most nodes that a removal of unreachable nodes has kept, at least 1024. Twice as many
  // nodes start the next removal.
  std::size_t most_kept_nodes_ = 1024;
  std::vector<Hypothesis> live_;
  std::vector<Hypothesis> ended_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_
