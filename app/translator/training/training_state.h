// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_

#include <string>

#include <qkv/app/array_file.h>
#include <qkv/app/translation_model.h>
#include <qkv/ranks.h>

#include "files/locked_folder.h"
#include "translator/model/run_folder.h"
#include "translator/optimiser/adam.h"
#include "translator/training/budget.h"
#include "translator/training/early_stopping.h"

// The state that changes during training, and its files.
namespace qkv::app {

// The file names of a RUN folder, besides those in translator/model/run_folder.h.
inline constexpr const char* kSourceFile = "source.vocab.json";
inline constexpr const char* kTargetFile = "target.vocab.json";
inline constexpr const char* kSubwordFile = "subwords.model";  // replaces both vocabulary files
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kLogFile = "train.jsonl";
inline constexpr const char* kRunFiles[] = {kConfigFile, kSourceFile, kTargetFile, kSubwordFile,
                                            kModelFile,  kBestFile,   kStateFile,  kLogFile};

// The counters of the state, over all runs in the folder. Here "the last line" means the last line
// of train.jsonl without `end`, and a "time" is a value of spent.seconds.
struct Counts {
  Spent spent{};
  Index batch = 0;  // batches of the current epoch that are done
  // The kind of line that the last update still needs (`line_due`), and the one that it already has
  // (`line_done`): 0 for none, 1 for a line without a validation, 2 for one with a validation.
  Index line_due = 0;
  Index line_done = 0;
  Index tokens = 0;      // target tokens since the last line
  double loss = 0;       // sum of the loss over these tokens
  double last_loss = 0;  // loss per token of the last update
  double last_norm = 0;  // gradient norm of the last update, before clipping
  // The time of the last line, plus the duration of validations since: the start of the interval
  // for which the next line states the speed.
  double line_seconds = 0;
  Index line_updates = 0;  // updates since the last line
  Index clipped = 0;       // updates since the last line whose gradients were clipped
  // The time of the last validation or, without validation data, of the last one that was due.
  double valid_seconds = 0;
};

class TrainingState {
 public:
  // Takes a model whose parameters are zero. `with_best` means that the best parameters are kept
  // separately from the latest ones.
  TrainingState(TranslationModel initial, const AdamOptions& options, EarlyStopping stops,
                bool with_best);

  TranslationModel model;
  Adam adam;
  EarlyStopping stopping;
  Counts counts{};
  std::string log{};  // all lines of train.jsonl

  // Copies the latest parameters to the best ones.
  void keep_best();
  bool is_finite() const;

  // Writes train.jsonl, the state, the best and the latest model, in this order. Throws
  // OutputError.
  void save(const LockedFolder& folder);
  // Reads the state that save() wrote, and truncates train.jsonl to the length recorded in it.
  // Throws InputError if the files hold anything else.
  void restore(const LockedFolder& folder);
  // Writes the latest model and, if `with_best`, the best one. The caller passes false if
  // best.safetensors is better than the state's best.
  void write_models(const LockedFolder& folder, bool with_best = true);
  // Copies everything but the log from the first rank to the others.
  void share(Ranks& ranks);

 private:
  // Calls visit(name, tensor) for each array of the state except the counters.
  template <class Visit>
  void for_each_array(const Visit& visit);
  // The best parameters, unused before the first validation; absent if the latest are always the
  // best.
  TranslatorGradients best_;
  bool with_best_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_
