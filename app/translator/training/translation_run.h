// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRANSLATION_RUN_H_
#define QKV_TRANSLATOR_TRAINING_TRANSLATION_RUN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/app/subwords.h>
#include <qkv/app/translation_model.h>
#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>
#include <qkv/context.h>
#include <qkv/export.h>

#include "translator/optimiser/adam.h"
#include "translator/optimiser/schedule.h"
#include "translator/training/budget.h"
#include "translator/training/early_stopping.h"

// Training a translator in a RUN folder, which is plain files:
//   config.json         every setting, including defaults, and the data's pair counts and hashes
//   source.vocab.json, target.vocab.json; of subwords: subwords.model, SentencePiece's model file
//   model.safetensors   the latest parameters
//   best.safetensors    the best in validation; before the first, and without validation, the
//                       latest
//   state.safetensors   the checkpoint: parameters, the best ones, Adam's moments, counters
//   train.jsonl         a line for each epoch, each validation, and where a run ended
//   checkpoint-N.safetensors   the parameters at the last validations, if asked for
//
// Each file is written to a temporary name, synced and renamed: it is the old or the new one,
// complete. The state alone says where a run stands; it holds the parameters, so it needs no other
// file to match it. A save writes train.jsonl first, then the state, then best and model. If the
// process ends between two of these, nothing is lost: resuming truncates train.jsonl to the length
// recorded in the state and rewrites best and model from the state.
//
// An interrupted and resumed run has bit for bit the parameters of an uninterrupted one, for any
// number of threads: batches are a function of (seed, epoch), dropout of (seed, update, shard),
// the learning rate of the update; a batch is split into shards by its size alone, and their
// gradients are summed in a fixed tree. (A time budget ends by the clock, and --after is
// not part of the configuration: what follows is the same again.) Validations do not change
// parameters, whatever they depend on; where they are due by time, the clock decides which
// parameters are the best, are kept, or end the run by early stopping. The validation at the end of
// a budget is in train.jsonl, marked as such, and takes no part in early stopping: in an
// uninterrupted run there would be none.
namespace qkv::app {

struct TrainingOptions {
  // Data: tab-separated text, one pair a line; "-" is standard input. The folder keeps the absolute
  // path, so that the run goes on from any directory.
  std::string data{};
  std::string valid{};      // likewise; "": none
  Index source_column = 0;  // from 0
  Index target_column = 1;
  Tokenization tokenization = Tokenization::kCharacter;
  SubwordOptions subwords{};  // if these are the tokens
  LetterCase letters = LetterCase::kKept;
  Index min_count = 1;     // rarer tokens are unknown; 1 for subwords, which never are
  Index max_length = 200;  // pairs with more tokens on either side are left out

  TranslatorConfig model{};  // sizes of the vocabularies: from the data

  // Training. The loss is the mean over the target tokens of a batch.
  Index batch_tokens = 2048;
  Schedule schedule{.rate = 2e-3, .warmup = 100, .decay = 500};
  double clip = 1;  // maximum norm of the gradients; infinity: no clipping
  AdamOptions adam{};
  // Also writes a line to train.jsonl. A time is counted from the end of one validation to the
  // next, over all runs in the folder.
  Budget validate_every{.epochs = 1};
  Index valid_translate = 2000;  // validation sentences, from the first, that are translated
  BestBy best = BestBy::kBleu;   // which validation is the best
  Index patience = 0;            // validations without improvement before the end; 0: none
  std::uint64_t seed = 0;

  // These may change from one run in the folder to the next.
  Budget after{.epochs = 10};         // of all runs together
  Budget save_every{.updates = 500};  // updates, seconds; the end always saves
  Index keep = 0;  // checkpoints at the last validations (or where they would be, without any)
  Executor executor{};
};

// Progress of training, reported after each update.
struct TrainingProgress {
  Spent spent{};
  Index batch = 0;  // of the current epoch, from 1
  Index batches = 0;
  double loss = 0;                       // per target token of the last update
  double tokens_per_second = 0;          // target tokens, with end tokens, of this run
  std::optional<double> seconds_left{};  // of the budget that ends first
};

// A sentence of the validation data with its first reference, and what the model made of it.
struct ValidationSample {
  std::string source{};
  std::string translation{};
  std::string reference{};
};

// The result of a validation: the mean loss over target tokens (including end tokens), without
// dropout and smoothing, and the greedy translations of the first `translated` sentences: the
// pairs with one source are one sentence with several references.
struct ValidationScore {
  double loss = 0;  // its exponential is the perplexity
  double bleu = 0;  // of 100, as `qkv score` has it
  Index exact = 0;  // translations that are a reference
  Index translated = 0;
  ValidationSample sample{};  // another one at each update
};

// A validation, reported when it is done.
struct TrainingValidation {
  Spent spent{};
  Index batch = 0;  // of the current epoch, from 1
  Index batches = 0;
  ValidationScore score{};
  bool is_best = false;  // so far
  // The share of updates since the last line of train.jsonl whose gradients were clipped; none if
  // there were no updates, or no clipping.
  std::optional<double> clipped{};
};

struct TrainingHooks {
  std::function<void(const TrainingProgress&)> progress{};
  std::function<void(const TrainingValidation&)> validation{};
  // If set, the run is saved and ends. May be null; must outlive the call.
  const std::atomic<bool>* stop = nullptr;
};

enum class TrainingEnd { kBudget, kPatience, kStopped };

struct TrainingReport {
  TrainingEnd end = TrainingEnd::kBudget;
  Spent spent{};                   // by all runs
  std::optional<Index> resumed{};  // the update from which this run resumed
  Index pairs = 0;
  Index left_out = 0;       // longer than max_length
  Index source_tokens = 0;  // sizes of the vocabularies
  Index target_tokens = 0;
  Index parameters = 0;
  double loss = 0;                         // of the last update
  std::optional<ValidationScore> valid{};  // of the latest parameters
  Quality best{};                          // of best.safetensors
  BestBy best_by = BestBy::kBleu;          // what made it the best
};

// A loss or a gradient that is not finite. That update is discarded; the folder holds
// the last checkpoint.
class QKV_API Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Diverged() override;
};

// The folder holds a run with another configuration or other data. what() shows each difference.
class QKV_API RunMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~RunMismatch() override;
};

// Trains in the folder until a budget is used up, resuming from its checkpoint if there is one.
// Throws InputError for data or a folder's files that cannot be read (an empty field is an error of
// its line), OutputError if the folder cannot be written or another process holds it, Error for
// invalid options, RunMismatch, Diverged.
QKV_API TrainingReport train_translation(const TrainingOptions& options, const std::string& folder,
                                         const TrainingHooks& hooks = {});

// Whether the folder holds a run: a config.json.
QKV_API bool holds_run(const std::string& folder);

// The options with which the run in a folder goes on: its own, except those settings of `typed`
// that `given` names as config.json does ("learning_rate"), and the executor of `typed`. Whether
// the result is the same run is for train_translation() to say. Throws InputError for a folder
// without a run or with a config.json that cannot be read; Error for an unknown name.
QKV_API TrainingOptions options_of_run(const std::string& folder, const TrainingOptions& typed,
                                       std::span<const std::string> given);

// The names of the settings that an option of the command line sets: "--cols" sets two.
QKV_API std::vector<std::string> settings_of_option(std::string_view option);

enum class RunModel { kBest, kLast };

// The paths of a RUN folder's files, whether or not they exist.
QKV_API std::vector<std::string> run_files(const std::string& folder);

// The model files that keep the parameters at the last validations, in the order of updates. Throws
// InputError for a folder that cannot be read.
QKV_API std::vector<std::string> run_checkpoints(const std::string& folder);

// Whether a run gives a file of its folder this name as it keeps a checkpoint.
QKV_API bool is_checkpoint_name(std::string_view name);

// The translator of a RUN folder. Throws InputError for missing or malformed files, Cancelled
// if `stop` is set.
QKV_API TranslationModel read_translation_model(const std::string& folder, RunModel which,
                                                const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRANSLATION_RUN_H_
