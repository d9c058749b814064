// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_

#include <string>
#include <utility>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/app/translation_model.h>

#include "files/locked_folder.h"
#include "translator/optimiser/adam.h"
#include "translator/training/budget.h"
#include "translator/training/early_stopping.h"

// All state that changes during training, and its files.
namespace qkv::app {

// The file names of a RUN folder.
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kSourceFile = "source.vocab.json";
inline constexpr const char* kTargetFile = "target.vocab.json";
inline constexpr const char* kSubwordFile = "subwords.model";  // instead of the two
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kBestFile = "best.safetensors";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kLogFile = "train.jsonl";
inline constexpr const char* kRunFiles[] = {kConfigFile, kSourceFile, kTargetFile, kSubwordFile,
                                            kModelFile,  kBestFile,   kStateFile,  kLogFile};

struct Counts {
  Spent spent{};
  Index batch = 0;  // batches of the current epoch that are done
  // The line of train.jsonl that is due after this update and not written yet: 1, or 2 with
  // validation.
  Index line_due = 0;
  // What train.jsonl has of this update: 0 nothing, 1 a line, 2 one with validation.
  Index line_done = 0;
  Index tokens = 0;          // target tokens since the last line
  double loss = 0;           // their loss
  double last_loss = 0;      // per token, of the last update
  double last_norm = 0;      // of its gradient, before clipping
  double line_seconds = 0;   // when the last line was written
  Index line_updates = 0;    // since the last line
  Index clipped = 0;         // of these, the ones whose gradient was clipped
  double valid_seconds = 0;  // when the last validation ended
};

class TrainingState {
 public:
  // Takes a model whose parameters are zero. `with_best`: the best parameters are kept separately
  // from the latest ones.
  TrainingState(TranslationModel initial, const AdamOptions& options, EarlyStopping stops,
                bool with_best);

  TranslationModel model;
  Adam adam;
  EarlyStopping stopping;
  Counts counts{};
  std::string log{};  // all lines of train.jsonl

  // Makes the latest parameters the best.
  void keep_best();
  bool is_finite() const;

  // Writes train.jsonl, the state, and best and model, in this order. Throws OutputError.
  void save(const LockedFolder& folder);
  // Reads what save() wrote, truncates train.jsonl to the state, and rewrites best and
  // model. Throws InputError for files that hold anything else.
  void restore(const LockedFolder& folder);

 private:
  // Calls visit(name, tensor) for each array of the state except the counters.
  template <class Visit>
  void for_each_array(const Visit& visit);
  void write_models(const LockedFolder& folder);

  // Parameters; absent if the latest are the best, unused before the first validation.
  TranslatorGradients best_;
  bool with_best_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_STATE_H_
