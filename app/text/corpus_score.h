// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CORPUS_SCORE_H_
#define QKV_TEXT_CORPUS_SCORE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

#include "text/bleu.h"
#include "text/chrf.h"

// Translations of a corpus against their references: BLEU and chrF2 as sacreBLEU computes them by
// default, of the texts as they are given, and how many translations are exact.
namespace qkv::app {

// What a sentence adds to the scores of its corpus. Counts of sentences are added.
struct SentenceCounts {
  BleuCounts bleu{};
  ChrfCounts chrf{};
  Index exact = 0;  // 1 if the translation is the same as a reference: folded_text()

  QKV_API SentenceCounts& operator+=(const SentenceCounts& other);
};

// At least one reference. Throws Error (argument "text") for invalid UTF-8.
QKV_API SentenceCounts sentence_counts(std::string_view translation,
                                       std::span<const std::string> references);

struct CorpusScore {
  Bleu bleu{};
  double chrf = 0;  // chrF2, 0 to 100
  Index exact = 0;
  Index sentences = 0;

  double exact_percent() const {
    return sentences == 0 ? 0 : 100 * static_cast<double>(exact) / static_cast<double>(sentences);
  }
};

QKV_API CorpusScore corpus_score(std::span<const SentenceCounts> sentences);

// A paired test of two systems: how many samples were drawn, and from which seed.
struct Resampling {
  Index samples = 1000;
  std::uint64_t seed = 0;
};

// How the scores were computed, in sacreBLEU's form, with our version for its own.
class QKV_API Signature {
 public:
  // Counts the references of one more sentence.
  void add(Index references);

  // "nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-0.1.0"; with a test after nrefs
  // "|bs:1000|seed:0".
  std::string bleu(const std::optional<Resampling>& test = {}) const;
  std::string chrf(const std::optional<Resampling>& test = {}) const;

 private:
  std::string text(std::string_view metric, const std::optional<Resampling>& test) const;

  Index fewest_ = 0;  // 0: no sentence
  Index most_ = 0;
};

// The probability of a difference as large as the one found, or larger, if the systems were equally
// good.
struct PairedTest {
  double bleu = 1;
  double chrf = 1;
};

// Paired bootstrap resampling (Koehn 2004, "Statistical Significance Tests for Machine Translation
// Evaluation"): both systems are scored on the same samples of as many sentences, drawn with
// repetition. As in sacreBLEU, p = (c + 1) / (samples + 1), where c counts the samples whose
// absolute difference, less the mean of all these, is larger than the difference that was found;
// but p = 1 without a difference, where sacreBLEU has its least p.
// The spans have the same sentences. The same on every machine.
QKV_API PairedTest paired_bootstrap(std::span<const SentenceCounts> one,
                                    std::span<const SentenceCounts> other,
                                    const Resampling& resampling);

}  // namespace qkv::app

#endif  // QKV_TEXT_CORPUS_SCORE_H_
