// SPDX-License-Identifier: Apache-2.0
#include "text/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

namespace qkv::app {
namespace {

using Tokens = std::span<const std::string>;

struct ByTokens {
  bool operator()(Tokens a, Tokens b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};
// N-gram counts; the keys refer to the tokens.
using NgramCounts = std::map<Tokens, Index, ByTokens>;

NgramCounts ngrams_of(Tokens tokens, std::size_t n) {
  NgramCounts counts;
  for (std::size_t at = 0; at + n <= tokens.size(); ++at) ++counts[tokens.subspan(at, n)];
  return counts;
}

double brevity_penalty(double hypothesis, double reference) {
  if (hypothesis == 0) return 0;
  return std::min(1.0, std::exp(1 - reference / hypothesis));
}

}  // namespace

void BleuCounter::add(Tokens hypothesis, Tokens reference) {
  hypothesis_tokens_ += std::ssize(hypothesis);
  reference_tokens_ += std::ssize(reference);
  for (std::size_t order = 0; order < kBleuOrders; ++order) {
    const NgramCounts wanted = ngrams_of(reference, order + 1);
    for (const auto& [ngram, count] : ngrams_of(hypothesis, order + 1)) {
      ngrams_[order] += count;
      const auto found = wanted.find(ngram);
      if (found != wanted.end()) matches_[order] += std::min(count, found->second);
    }
  }
}

Bleu BleuCounter::result(BleuSmoothing smoothing) const {
  const auto c = static_cast<double>(hypothesis_tokens_);
  const auto r = static_cast<double>(reference_tokens_);
  Bleu bleu{.brevity_penalty = 100 * brevity_penalty(c, r),
            .hypothesis_tokens = hypothesis_tokens_,
            .reference_tokens = reference_tokens_};
  if (matches_[0] == 0) return bleu;
  double unmatched = 1;  // 1/2^k
  double logarithms = 0;
  for (std::size_t order = 0; order < kBleuOrders; ++order) {
    double matches = static_cast<double>(matches_[order]);
    if (matches == 0 && smoothing == BleuSmoothing::kExponential) matches = unmatched /= 2;
    const auto ngrams = static_cast<double>(ngrams_[order]);
    const double precision = ngrams == 0 ? 0 : matches / ngrams;
    bleu.precisions[order] = 100 * precision;
    logarithms += std::log(precision);  // of 0: -inf, and the score is 0
  }
  bleu.score = bleu.brevity_penalty * std::exp(logarithms / kBleuOrders);
  return bleu;
}

}  // namespace qkv::app
