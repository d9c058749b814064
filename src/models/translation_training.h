// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_TRANSLATION_TRAINING_H_
#define QKV_MODELS_TRANSLATION_TRAINING_H_

#include <chrono>
#include <optional>
#include <vector>

#include <qkv/app/locked_folder.h>
#include <qkv/app/translation_run.h>

#include "models/batch_gradients.h"
#include "models/training_state.h"
#include "models/translation_data.h"

namespace qkv::models {

// One run of a folder: what it learns from, where it stands, and the loop.
class Training {
 public:
  // `options` has the sizes of the vocabularies. All arguments must outlive the object.
  Training(const app::TrainingOptions& options, const TranslationData& data,
           const app::LockedFolder& folder, const app::TrainingHooks& hooks);

  // From the folder's state, if it has one; else from the first parameters, which are saved.
  void begin();
  // Until a budget is spent, validation gets no better or the flag is set; then saves.
  void run();
  // After run(). Where the last parameters are better than the best at a validation they become
  // best.safetensors, but not part of the state: going on must not know where this run ended.
  app::TrainingReport report();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_stopped() const;
  bool is_over() const;
  bool is_save_due() const;
  void loop();
  void update();
  void learn_from(const app::TranslationLoss& loss);
  void ask_for_line();
  void write_line();
  void save();
  void count_seconds();
  const app::ValidationScore& score();
  std::optional<double> seconds_left() const;
  void tell() const;
  void check_nothing_is_lost() const;
  [[noreturn]] void fail(const std::string& what, Index update) const;

  const app::TrainingOptions& options_;
  const TranslationData& data_;
  const app::LockedFolder& folder_;
  const app::TrainingHooks& hooks_;
  std::vector<app::PairLength> lengths_;
  TrainingState state_;
  BatchGradients gradients_;
  std::vector<std::vector<Index>> batches_{};  // of the epoch that runs now
  Index batches_epoch_ = -1;

  // Of this run alone.
  std::optional<Index> resumed_{};
  Clock::time_point started_ = Clock::now();
  double seconds_before_ = 0;  // spent by earlier runs
  Index first_update_ = 0;
  Index tokens_ = 0;  // target tokens learned from
  Index saved_update_ = 0;
  double saved_seconds_ = 0;
  bool is_saved_ = false;
  std::optional<app::ValidationScore> score_{};  // of the parameters as they are
};

}  // namespace qkv::models

#endif  // QKV_MODELS_TRANSLATION_TRAINING_H_
