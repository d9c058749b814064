// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CORPUS_SCORE_H_
#define QKV_TEXT_CORPUS_SCORE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

#include "text/bleu.h"
#include "text/chrf.h"

// Scores of a corpus of translations against their references: BLEU and chrF2 as sacreBLEU computes
// them by default, on the texts as given, and the number of exact translations.
namespace qkv::app {

// The counts of one sentence. The scores of a corpus come from the sum of its sentences' counts.
struct SentenceCounts {
  BleuCounts bleu{};
  ChrfCounts chrf{};
  Index exact = 0;  // 1 if the translation equals a reference by folded_text()

  QKV_API SentenceCounts& operator+=(const SentenceCounts& other);
};

// Counts one sentence. There must be at least one reference. Throws Error (argument "text") for
// invalid UTF-8.
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

// The options of a paired test of two systems: the number of samples, and the seed of their random
// draws.
struct Resampling {
  Index samples = 1000;
  std::uint64_t seed = 0;
};

// Describes how the scores were computed, in sacreBLEU's form but with qkv's version.
class QKV_API Signature {
 public:
  // Adds a sentence with the given number of references.
  void add(Index references);

  // The text of the signature, such as
  // "nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-0.1.0". A paired test adds
  // "|bs:1000|seed:0" after nrefs.
  std::string bleu(const std::optional<Resampling>& test = {}) const;
  std::string chrf(const std::optional<Resampling>& test = {}) const;

 private:
  std::string text(std::string_view metric, const std::optional<Resampling>& test) const;

  Index fewest_ = 0;  // 0 without sentences
  Index most_ = 0;
};

// For each score, the probability of a difference at least as large as the one found if the two
// systems were equally good.
struct PairedTest {
  double bleu = 1;
  double chrf = 1;
};

// Paired bootstrap resampling (Koehn 2004, "Statistical Significance Tests for Machine Translation
// Evaluation"): both systems are scored on the same samples, each of as many sentences as the
// corpus, drawn with replacement. As in sacreBLEU, p = (c + 1) / (samples + 1), where c counts the
// samples whose absolute difference, less the mean of the absolute differences, is larger than the
// difference on the corpus. If that difference is 0, p is 1; sacreBLEU, in contrast, gives
// identical systems its smallest p. Both spans must count the same sentences. The result is the
// same on every machine. Throws Cancelled if `stop` is set.
QKV_API PairedTest paired_bootstrap(std::span<const SentenceCounts> one,
                                    std::span<const SentenceCounts> other,
                                    const Resampling& resampling,
                                    const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_TEXT_CORPUS_SCORE_H_
