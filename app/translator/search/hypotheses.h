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
  // Whether the translation is known.
  bool done() const noexcept { return done_; }
  // Live hypotheses, best first; at most the beam.
  Index live() const noexcept { return static_cast<Index>(live_.size()); }
  std::int32_t last_token(Index hypothesis) const;
  // The hypothesis of the previous step that this one continues.
  Index parent(Index hypothesis) const;

  double log_probability(Index hypothesis) const;

  // How many continuations a step needs: enough when each hypothesis may end.
  static Index continuations(const SearchOptions& options) noexcept;
  // One step: continuations(), or all that there are, best first. Row k of `attention` [live,Ts]
  // belongs to hypothesis k; it may be absent, unless the options ask for attention or one of
  // several tokens is Vocabulary::kUnknown and they ask where those come from.
  void advance(std::span<const Continuation> best, std::span<const float> attention, Index Ts);

  // Once done; with the attention that the options ask for, rows of Ts numbers.
  Translation best(Index Ts) const;

 private:
  // A token, linked to its predecessor.
  struct Node {
    Index before = -1;
    std::int32_t token = 0;
    std::int32_t looked_at = 0;  // of unknown tokens
    std::vector<float> attention{};
  };
  struct Hypothesis {
    Index node = -1;
    Index parent = 0;
    Index tokens = 0;
    double log_probability = 0;
  };
  void forget_dead_ends();
  double score(const Hypothesis& hypothesis) const;

  SearchOptions options_;
  Index most_tokens_;
  bool done_ = false;
  std::vector<Node> nodes_;
  std::size_t looked_at_ = 1024;  // dead ends are removed when there are twice as many nodes
  std::vector<Hypothesis> live_;
  std::vector<Hypothesis> ended_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_HYPOTHESES_H_
