// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_EARLY_STOPPING_H_
#define QKV_TRANSLATOR_TRAINING_EARLY_STOPPING_H_

#include <cmath>
#include <limits>

#include <qkv/view.h>

#include "text/choice.h"

namespace qkv::app {

// The criterion for the best parameters. With kBleu, the smaller loss decides if BLEU is equal or
// unknown.
enum class BestBy { kBleu, kLoss };
inline constexpr Choice<BestBy> kBestBy[] = {{"bleu", BestBy::kBleu}, {"loss", BestBy::kLoss}};

// The quality of some parameters. The default is worse than every quality with a finite loss.
struct Quality {
  double loss = std::numeric_limits<double>::infinity();
  double bleu = -1;  // 0 to 100; negative: unknown
};

// True if `quality` is better than `other`. Parameters whose loss is not finite are never better.
inline bool is_better(BestBy by, const Quality& quality, const Quality& other) noexcept {
  if (!std::isfinite(quality.loss)) return false;
  switch (by) {
    case BestBy::kBleu:
      if (quality.bleu >= 0 && other.bleu >= 0 && quality.bleu != other.bleu) {
        return quality.bleu > other.bleu;
      }
      break;
    case BestBy::kLoss:
      break;
  }
  return quality.loss < other.loss;
}

// The best quality so far, and the number of validations since it was reached.
class EarlyStopping {
 public:
  // Training ends after this many validations in a row without improvement; 0: never.
  explicit EarlyStopping(Index patience = 0, BestBy by = BestBy::kLoss) noexcept
      : patience_(patience), by_(by) {}

  // Takes the quality of the next validation. Returns true if it is better than all before.
  bool take(const Quality& quality) noexcept {
    const bool better = is_better(quality);
    misses_ = better ? 0 : misses_ + 1;
    if (better) best_ = quality;
    return better;
  }
  bool is_better(const Quality& quality) const noexcept {
    return app::is_better(by_, quality, best_);
  }
  bool is_over() const noexcept { return patience_ > 0 && misses_ >= patience_; }

  const Quality& best() const noexcept { return best_; }
  bool has_best() const noexcept { return std::isfinite(best_.loss); }
  Index misses() const noexcept { return misses_; }
  void restore(const Quality& best, Index misses) noexcept {
    best_ = best;
    misses_ = misses;
  }

 private:
  Index patience_;
  BestBy by_;
  Quality best_{};
  Index misses_ = 0;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_EARLY_STOPPING_H_
