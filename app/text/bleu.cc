// SPDX-License-Identifier: Apache-2.0
#include "text/bleu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

namespace qkv::app {
namespace {

using Tokens = std::span<const std::string>;

struct ByTokens {
  bool operator()(Tokens a, Tokens b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};
// N-gram counts. The keys are views of the tokens, which must outlive them.
using NgramCounts = std::map<Tokens, Index, ByTokens>;

NgramCounts ngrams_of(Tokens tokens, std::size_t n) {
  NgramCounts counts;
  for (std::size_t at = 0; at + n <= tokens.size(); ++at) ++counts[tokens.subspan(at, n)];
  return counts;
}

// For each n-gram, its count in the reference that has most of it.
NgramCounts most_ngrams(std::span<const std::vector<std::string>> references, std::size_t n) {
  NgramCounts most;
  for (const Tokens reference : references) {
    for (const auto& [ngram, count] : ngrams_of(reference, n)) {
      Index& so_far = most[ngram];
      so_far = std::max(so_far, count);
    }
  }
  return most;
}

Index nearest_length(Index hypothesis, std::span<const std::vector<std::string>> references) {
  const auto is_better = [&](Index a, Index b) {
    const Index far_a = std::abs(a - hypothesis);
    const Index far_b = std::abs(b - hypothesis);
    return far_a < far_b || (far_a == far_b && a < b);
  };
  Index nearest = std::ssize(references[0]);
  for (const Tokens reference : references.subspan(1)) {
    if (is_better(std::ssize(reference), nearest)) nearest = std::ssize(reference);
  }
  return nearest;
}

double brevity_penalty(double hypothesis, double reference) {
  if (hypothesis >= reference) return 1;
  return hypothesis == 0 ? 0 : std::exp(1 - reference / hypothesis);
}

}  // namespace

BleuCounts& BleuCounts::operator+=(const BleuCounts& other) {
  for (std::size_t order = 0; order < kBleuOrders; ++order) {
    matches[order] += other.matches[order];
    ngrams[order] += other.ngrams[order];
  }
  hypothesis_tokens += other.hypothesis_tokens;
  reference_tokens += other.reference_tokens;
  return *this;
}

BleuCounts bleu_counts(Tokens hypothesis, std::span<const std::vector<std::string>> references) {
  BleuCounts counts;
  counts.hypothesis_tokens = std::ssize(hypothesis);
  counts.reference_tokens = nearest_length(counts.hypothesis_tokens, references);
  for (std::size_t order = 0; order < kBleuOrders; ++order) {
    const NgramCounts wanted = most_ngrams(references, order + 1);
    for (const auto& [ngram, count] : ngrams_of(hypothesis, order + 1)) {
      counts.ngrams[order] += count;
      const auto found = wanted.find(ngram);
      if (found != wanted.end()) counts.matches[order] += std::min(count, found->second);
    }
  }
  return counts;
}

Bleu bleu_of(const BleuCounts& counts) {
  const auto c = static_cast<double>(counts.hypothesis_tokens);
  const auto r = static_cast<double>(counts.reference_tokens);
  Bleu bleu{.brevity_penalty = 100 * brevity_penalty(c, r),
            .hypothesis_tokens = counts.hypothesis_tokens,
            .reference_tokens = counts.reference_tokens};
  if (counts.matches[0] == 0) return bleu;
  double unmatched = 1;  // 1/2^k after k orders without a match
  double logarithms = 0;
  for (std::size_t order = 0; order < kBleuOrders; ++order) {
    double matches = static_cast<double>(counts.matches[order]);
    if (matches == 0) matches = unmatched /= 2;
    const auto ngrams = static_cast<double>(counts.ngrams[order]);
    const double precision = ngrams == 0 ? 0 : matches / ngrams;
    bleu.precisions[order] = 100 * precision;
    logarithms += std::log(precision);  // -inf for 0, which makes the score 0
  }
  bleu.score = bleu.brevity_penalty * std::exp(logarithms / kBleuOrders);
  return bleu;
}

}  // namespace qkv::app
