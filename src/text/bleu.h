// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_BLEU_H_
#define QKV_TEXT_BLEU_H_

#include <array>
#include <span>
#include <string>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

inline constexpr int kBleuOrders = 4;  // n-grams of 1 to 4 tokens

// What replaces a precision without any match, which would make the whole score 0.
enum class BleuSmoothing {
  kNone,         // nothing
  kExponential,  // the k-th such order counts 1/2^k matches: Chen and Cherry 2014, method 3; the
                 // default of sacreBLEU
};

// Everything except the lengths is in percent.
struct Bleu {
  double score = 0;
  std::array<double, kBleuOrders> precisions{};  // of n = 1..4, smoothed; 0: no n-grams at all
  double brevity_penalty = 0;
  Index hypothesis_tokens = 0;
  Index reference_tokens = 0;
};

// How well translations match their references: Papineni, Roukos, Ward and Zhu 2002, "BLEU:
// a Method for Automatic Evaluation of Machine Translation", with one reference each. For n = 1..4
// the modified precision p_n is the share of the n-grams of all translations that are in their
// reference, each n-gram counted at most as often as the reference has it (section 2.1.1). With c
// tokens in all translations and r in all references
//   BLEU = min(1, exp(1 - r/c)) * (p_1 p_2 p_3 p_4)^(1/4)     (section 2.3).
// The score of a corpus is not the mean of its sentences'. It is 0 if no token matches, or
// no translation has four tokens.
class QKV_API BleuCounter {
 public:
  void add(std::span<const std::string> hypothesis, std::span<const std::string> reference);
  Bleu result(BleuSmoothing smoothing = BleuSmoothing::kExponential) const;

 private:
  std::array<Index, kBleuOrders> matches_{};
  std::array<Index, kBleuOrders> ngrams_{};  // of the hypotheses
  Index hypothesis_tokens_ = 0;
  Index reference_tokens_ = 0;
};

}  // namespace qkv::app

#endif  // QKV_TEXT_BLEU_H_
