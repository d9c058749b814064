// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_BLEU_H_
#define QKV_TEXT_BLEU_H_

#include <array>
#include <span>
#include <string>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

// BLEU, which measures how well translations match their references: Papineni, Roukos, Ward and Zhu
// 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation", with any number of
// references. For n = 1..4 the modified precision p_n is the share of the n-grams of all
// translations that are in a reference; each n-gram counts at most as often as it is in the
// reference that has most of it (section 2.1.1). Let c be the number of tokens in all translations
// and r the sum, over the translations, of the length of the reference nearest in length (the
// shorter of two equally near ones). Then
//   BLEU = min(1, exp(1 - r/c)) * (p_1 p_2 p_3 p_4)^(1/4)     (section 2.3).
// A precision without any match would make the whole score 0: the k-th such order counts 1/2^k
// matches instead (Chen and Cherry 2014, method 3; sacreBLEU's smooth:exp). The score of a corpus
// is not the mean of its sentences' scores. It is 0 if no token matches, or no translation has four
// tokens.
namespace qkv::app {

inline constexpr int kBleuOrders = 4;  // n-grams of 1 to 4 tokens

// The counts of one sentence. The score of a corpus comes from the sum of its sentences' counts.
struct BleuCounts {
  std::array<Index, kBleuOrders> matches{};
  std::array<Index, kBleuOrders> ngrams{};  // n-grams of the translation
  Index hypothesis_tokens = 0;
  Index reference_tokens = 0;

  QKV_API BleuCounts& operator+=(const BleuCounts& other);
};

// The score of a corpus and its factors. Everything except the lengths is in percent.
struct Bleu {
  double score = 0;
  std::array<double, kBleuOrders> precisions{};  // p_1..p_4, smoothed; 0 without n-grams
  double brevity_penalty = 0;
  Index hypothesis_tokens = 0;
  Index reference_tokens = 0;
};

// Counts the n-grams of one sentence. There must be at least one reference.
QKV_API BleuCounts bleu_counts(std::span<const std::string> hypothesis,
                               std::span<const std::vector<std::string>> references);
QKV_API Bleu bleu_of(const BleuCounts& counts);

}  // namespace qkv::app

#endif  // QKV_TEXT_BLEU_H_
