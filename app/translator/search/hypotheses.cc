// SPDX-License-Identifier: Apache-2.0
#include "translator/search/hypotheses.h"

#include <algorithm>
#include <limits>

#include <qkv/app/vocabulary.h>

#include "core/elementary.h"

namespace qkv::app {

Hypotheses::Hypotheses(const SearchOptions& options, Index most_tokens)
    : options_(options), most_tokens_(most_tokens), live_(1) {}

std::int32_t Hypotheses::last_token(Index hypothesis) const {
  const Index node = live_[static_cast<std::size_t>(hypothesis)].node;
  return node < 0 ? Vocabulary::kStart : nodes_[static_cast<std::size_t>(node)].token;
}

Index Hypotheses::parent(Index hypothesis) const {
  return live_[static_cast<std::size_t>(hypothesis)].parent;
}

double Hypotheses::score(const Hypothesis& hypothesis) const {
  const auto tokens = static_cast<double>(std::max<Index>(hypothesis.tokens, 1));
  return hypothesis.log_probability / core::Powers(tokens).of(options_.length_penalty);
}

double Hypotheses::log_probability(Index hypothesis) const {
  return live_[static_cast<std::size_t>(hypothesis)].log_probability;
}

Index Hypotheses::continuations(const SearchOptions& options) noexcept {
  return options.beam == 1 ? 1 : 2 * options.beam;
}

void Hypotheses::advance(std::span<const Continuation> best, std::span<const float> attention,
                         Index Ts) {
  const auto width = static_cast<std::size_t>(Ts);
  std::vector<Hypothesis> next;
  for (std::size_t rank = 0; rank < best.size(); ++rank) {
    const Continuation& continuation = best[rank];
    const bool ends = continuation.token == Vocabulary::kEnd;
    // A continuation that ends counts only if it is among the `beam` best.
    if (ends && static_cast<Index>(rank) >= options_.beam) continue;
    if (!ends && static_cast<Index>(next.size()) == options_.beam) continue;
    const auto parent = static_cast<std::size_t>(continuation.parent);
    const Hypothesis& before = live_[parent];
    Node node{.before = before.node, .token = continuation.token};
    if (!attention.empty()) {
      const auto row = attention.subspan(parent * width, width);
      // The last column is the source's end token, which cannot be copied.
      node.looked_at =
          static_cast<std::int32_t>(std::max_element(row.begin(), row.end() - 1) - row.begin());
      if (options_.attention) node.attention.assign(row.begin(), row.end());
    }
    nodes_.push_back(std::move(node));
    (ends ? ended_ : next)
        .push_back({static_cast<Index>(nodes_.size()) - 1, continuation.parent, before.tokens + 1,
                    continuation.log_probability});
  }
  live_ = std::move(next);
  const bool full = !live_.empty() && live_.front().tokens >= most_tokens_;
  if (nodes_.size() >= 2 * most_kept_nodes_) forget_dead_ends();
  done_ = live_.empty() || full ||
          (static_cast<Index>(ended_.size()) >= options_.beam && best_has_ended());
}

// True if no live hypothesis has a higher score than the best one that has ended.
bool Hypotheses::best_has_ended() const {
  const auto by_score = [this](const Hypothesis& a, const Hypothesis& b) {
    return score(a) < score(b);
  };
  const Hypothesis& ended = *std::ranges::max_element(ended_, by_score);
  return !(score(*std::ranges::max_element(live_, by_score)) > score(ended));
}

// Keeps the nodes that a live or ended hypothesis reaches, in their order, so that a node still
// follows the node of the token before it.
void Hypotheses::forget_dead_ends() {
  std::vector<Index> moved(nodes_.size(), -1);  // -1: unreachable; 0: reached; later the new index
  for (const auto* list : {&live_, &ended_}) {
    for (const Hypothesis& hypothesis : *list) {
      for (Index node = hypothesis.node; node >= 0 && moved[static_cast<std::size_t>(node)] < 0;
           node = nodes_[static_cast<std::size_t>(node)].before) {
        moved[static_cast<std::size_t>(node)] = 0;
      }
    }
  }
  std::size_t kept = 0;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (moved[n] < 0) continue;
    Index& before = nodes_[n].before;
    if (before >= 0) before = moved[static_cast<std::size_t>(before)];
    moved[n] = static_cast<Index>(kept);
    if (kept != n) nodes_[kept] = std::move(nodes_[n]);
    ++kept;
  }
  nodes_.resize(kept);
  for (auto* list : {&live_, &ended_}) {
    for (Hypothesis& hypothesis : *list) {
      Index& node = hypothesis.node;
      if (node >= 0) node = moved[static_cast<std::size_t>(node)];
    }
  }
  most_kept_nodes_ = std::max(most_kept_nodes_, kept);
}

Translation Hypotheses::best(Index Ts) const {
  const std::vector<Hypothesis>& from = ended_.empty() ? live_ : ended_;
  // There is no hypothesis if none could be continued because of NaN.
  const Hypothesis none{.log_probability = std::numeric_limits<double>::quiet_NaN()};
  const Hypothesis* chosen = from.empty() ? &none : &from.front();
  for (const Hypothesis& hypothesis : from) {
    if (score(hypothesis) > score(*chosen)) chosen = &hypothesis;
  }
  Translation result;
  result.log_probability = options_.scores == SearchScores::kIfCompared && options_.beam == 1
                               ? std::numeric_limits<double>::quiet_NaN()
                               : chosen->log_probability;
  std::vector<const Node*> path;
  for (Index node = chosen->node; node >= 0; node = path.back()->before) {
    path.push_back(&nodes_[static_cast<std::size_t>(node)]);
  }
  std::reverse(path.begin(), path.end());
  if (options_.attention) {
    result.attention = Tensor(DType::kFloat32, {static_cast<Index>(path.size()), Ts});
  }
  for (std::size_t i = 0; i < path.size(); ++i) {
    result.tokens.push_back(path[i]->token);
    if (options_.unknown == UnknownSources::kFound && path[i]->token == Vocabulary::kUnknown) {
      result.unknown_sources.push_back(path[i]->looked_at);
    }
    if (!options_.attention) continue;
    std::copy_n(path[i]->attention.begin(), Ts,
                result.attention.values<float>().begin() + static_cast<std::ptrdiff_t>(i) * Ts);
  }
  return result;
}

}  // namespace qkv::app
