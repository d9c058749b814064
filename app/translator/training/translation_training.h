// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRANSLATION_TRAINING_H_
#define QKV_TRANSLATOR_TRAINING_TRANSLATION_TRAINING_H_

#include <optional>
#include <vector>

#include <qkv/ranks.h>

#include "files/locked_folder.h"
#include "translator/training/batch_gradients.h"
#include "translator/training/training_curve.h"
#include "translator/training/training_pace.h"
#include "translator/training/training_state.h"
#include "translator/training/translation_data.h"
#include "translator/training/translation_run.h"

namespace qkv::app {

// One run in a folder: its data, its state, and the training loop. All ranks take the same updates,
// each with the whole state; only the first has the folder and a clock that counts.
class Training {
 public:
  // `options` must have the sizes of the vocabularies; `folder` is null on all ranks but the
  // first. All arguments must outlive the object.
  Training(const TrainingOptions& options, const TranslationData& data, const LockedFolder* folder,
           const TrainingHooks& hooks, Ranks& ranks);

  // Resumes from the folder's state, if it has one; else saves the initial parameters. Only the
  // first rank may call it.
  void begin();
  // Copies the state of the first rank to the others, and starts the clock.
  void share();
  // Trains until a budget is used up, validation stops improving or the flag is set; then validates
  // once more, unless the flag is set, and saves.
  void run();
  // The report after run(). If the latest parameters are better in validation than the best, they
  // are written to best.safetensors, but not to the state: a resumed run must not depend on where
  // this one ended.
  TrainingReport report();

 private:
  void look_at_flag();
  bool is_over();
  double seconds();
  bool is_save_due() const;
  bool is_validation_due() const;
  void loop();
  void make_batches();
  void update();
  void learn_from(const TranslationLoss& loss);
  void schedule_line();
  void write_checkpoint();
  void write_line();
  void finish();
  void write_end_line(bool validated);
  void add_line(const char* end, std::optional<bool> is_best);
  bool try_to_score();
  std::optional<double> clipped() const;
  void save();
  void check_finite() const;
  const ValidationScore& score();
  Quality quality();
  void report_progress() const;
  std::vector<CurvePoint> curve_if_end_was_best() const;
  void warn_of_ignored_validation(std::vector<CurvePoint> points) const;
  void check_nothing_is_lost() const;
  [[noreturn]] void fail(const std::string& what, Index update) const;

  const TrainingOptions& options_;
  const TranslationData& data_;
  const LockedFolder* folder_;
  const TrainingHooks& hooks_;
  Ranks& ranks_;
  std::vector<PairLength> lengths_;
  TrainingState state_;
  BatchGradients gradients_;
  std::vector<std::vector<Index>> batches_{};  // of the current epoch
  Index batches_epoch_ = -1;

  // State of this run alone, which is not saved.
  std::optional<Index> resumed_{};
  bool is_stopped_ = false;  // true if the flag was set on any rank when the ranks last looked
  TrainingPace pace_{};
  Index saved_update_ = 0;
  double saved_seconds_ = 0;
  bool is_saved_ = false;
  std::optional<ValidationScore> score_{};  // of the current parameters, if they were validated
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRANSLATION_TRAINING_H_
