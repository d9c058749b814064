// SPDX-License-Identifier: Apache-2.0
#include "text/chrf.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "text/characters.h"
#include "text/tokenize_13a.h"

namespace qkv::app {
namespace {

// N-gram counts of one order. The keys are views of the characters, which must outlive them.
using CharacterNgrams = std::unordered_map<std::u32string_view, Index>;
using AllCharacterNgrams = std::array<CharacterNgrams, kChrfOrders>;

std::u32string characters_of(std::string_view text) {
  std::u32string all = decoded("chrf_counts", text);
  std::erase_if(all, is_white_space);
  return all;
}

AllCharacterNgrams character_ngrams(std::u32string_view characters) {
  AllCharacterNgrams all;
  for (std::size_t order = 0; order < kChrfOrders; ++order) {
    const std::size_t n = order + 1;
    for (std::size_t at = 0; at + n <= characters.size(); ++at) {
      ++all[order][characters.substr(at, n)];
    }
  }
  return all;
}

Index ngrams_in(std::size_t characters, std::size_t n) {
  return characters < n ? 0 : static_cast<Index>(characters - n + 1);
}

ChrfCounts counts_of(std::u32string_view hypothesis, const AllCharacterNgrams& hypothesis_ngrams,
                     std::u32string_view reference) {
  const AllCharacterNgrams reference_ngrams = character_ngrams(reference);
  ChrfCounts counts;
  for (std::size_t order = 0; order < kChrfOrders; ++order) {
    counts.reference[order] = ngrams_in(reference.size(), order + 1);
    if (counts.reference[order] == 0) continue;
    counts.hypothesis[order] = ngrams_in(hypothesis.size(), order + 1);
    for (const auto& [ngram, count] : hypothesis_ngrams[order]) {
      const auto found = reference_ngrams[order].find(ngram);
      if (found == reference_ngrams[order].end()) continue;
      counts.matches[order] += std::min(count, found->second);
    }
  }
  return counts;
}

}  // namespace

ChrfCounts& ChrfCounts::operator+=(const ChrfCounts& other) {
  for (std::size_t order = 0; order < kChrfOrders; ++order) {
    hypothesis[order] += other.hypothesis[order];
    reference[order] += other.reference[order];
    matches[order] += other.matches[order];
  }
  return *this;
}

ChrfCounts chrf_counts(std::string_view hypothesis, std::span<const std::string> references) {
  const std::u32string characters = characters_of(hypothesis);
  const AllCharacterNgrams ngrams = character_ngrams(characters);
  ChrfCounts best;
  double best_score = -1;
  for (const std::string& reference : references) {
    const ChrfCounts counts = counts_of(characters, ngrams, characters_of(reference));
    const double score = chrf_of(counts);
    if (score <= best_score) continue;
    best_score = score;
    best = counts;
  }
  return best;
}

double chrf_of(const ChrfCounts& counts) {
  constexpr double kFactor = 4;  // beta^2: recall has this many times the weight of precision
  double precision = 0;
  double recall = 0;
  int orders = 0;
  for (std::size_t order = 0; order < kChrfOrders; ++order) {
    if (counts.hypothesis[order] == 0 || counts.reference[order] == 0) continue;
    const auto matches = static_cast<double>(counts.matches[order]);
    precision += matches / static_cast<double>(counts.hypothesis[order]);
    recall += matches / static_cast<double>(counts.reference[order]);
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kFactor) * precision * recall / (kFactor * precision + recall);
}

}  // namespace qkv::app
