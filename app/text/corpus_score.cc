// SPDX-License-Identifier: Apache-2.0
#include "text/corpus_score.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include <qkv/error.h>
#include <qkv/version.h>

#include "core/draws.h"
#include "text/sentences.h"
#include "text/tokenize_13a.h"

namespace qkv::app {
namespace {

CorpusScore score_of(const SentenceCounts& sum, Index sentences) {
  return {bleu_of(sum.bleu), chrf_of(sum.chrf), sum.exact, sentences};
}

// The p-value of the absolute difference `found` on the corpus, given the samples' differences.
double p_value(std::span<const double> differences, double found) {
  if (found == 0) return 1;
  const auto samples = static_cast<double>(differences.size());
  double mean = 0;
  for (const double difference : differences) mean += difference;
  mean /= samples;
  const auto larger = std::ranges::count_if(
      differences, [&](double difference) { return difference - mean > found; });
  return (static_cast<double>(larger) + 1) / (samples + 1);
}

}  // namespace

SentenceCounts& SentenceCounts::operator+=(const SentenceCounts& other) {
  bleu += other.bleu;
  chrf += other.chrf;
  exact += other.exact;
  return *this;
}

SentenceCounts sentence_counts(std::string_view translation,
                               std::span<const std::string> references) {
  std::vector<std::vector<std::string>> tokens;
  tokens.reserve(references.size());
  for (const std::string& reference : references) tokens.push_back(tokenize_13a(reference));
  const std::string folded = folded_text(translation);
  const bool is_exact = std::ranges::any_of(
      references, [&](const std::string& reference) { return folded_text(reference) == folded; });
  return {bleu_counts(tokenize_13a(translation), tokens), chrf_counts(translation, references),
          is_exact ? 1 : 0};
}

CorpusScore corpus_score(std::span<const SentenceCounts> sentences) {
  SentenceCounts sum;
  for (const SentenceCounts& counts : sentences) sum += counts;
  return score_of(sum, std::ssize(sentences));
}

void Signature::add(Index references) {
  fewest_ = fewest_ == 0 ? references : std::min(fewest_, references);
  most_ = std::max(most_, references);
}

std::string Signature::text(std::string_view metric, const std::optional<Resampling>& test) const {
  const std::string count = fewest_ == most_ ? fmt::format("{}", most_) : "var";
  const std::string samples =
      test ? fmt::format("|bs:{}|seed:{}", test->samples, test->seed) : std::string();
  return fmt::format("nrefs:{}{}|case:mixed|{}|version:qkv-{}", count, samples, metric,
                     QKV_VERSION);
}

std::string Signature::bleu(const std::optional<Resampling>& test) const {
  return text("eff:no|tok:13a|smooth:exp", test);
}

std::string Signature::chrf(const std::optional<Resampling>& test) const {
  return text("eff:yes|nc:6|nw:0|space:no", test);
}

PairedTest paired_bootstrap(std::span<const SentenceCounts> one,
                            std::span<const SentenceCounts> other, const Resampling& resampling,
                            const std::atomic<bool>* stop) {
  const auto difference = [](const CorpusScore& a, const CorpusScore& b) {
    return PairedTest{std::abs(a.bleu.score - b.bleu.score), std::abs(a.chrf - b.chrf)};
  };
  std::vector<double> bleu;
  std::vector<double> chrf;
  for (Index sample = 0; sample < resampling.samples; ++sample) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      throw Cancelled("paired_bootstrap");
    }
    core::Draws draws(resampling.seed, core::DrawStream::kBootstrap, sample);
    SentenceCounts sums[2];
    for (std::size_t left = one.size(); left > 0; --left) {
      const std::size_t drawn = draws.below(static_cast<std::uint32_t>(one.size()));
      sums[0] += one[drawn];
      sums[1] += other[drawn];
    }
    const Index sentences = std::ssize(one);
    const PairedTest found = difference(score_of(sums[0], sentences), score_of(sums[1], sentences));
    bleu.push_back(found.bleu);
    chrf.push_back(found.chrf);
  }
  const PairedTest whole = difference(corpus_score(one), corpus_score(other));
  return {p_value(bleu, whole.bleu), p_value(chrf, whole.chrf)};
}

}  // namespace qkv::app
