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
#include <qkv/ranks.h>

#include "translator/optimiser/adam.h"
#include "translator/optimiser/schedule.h"
#include "translator/training/budget.h"
#include "translator/training/early_stopping.h"

// Trains a translator in a RUN folder, which holds plain files:
//   config.json         every setting, including defaults, and the data's counts and hashes
//   source.vocab.json, target.vocab.json; with subwords instead: subwords.model, SentencePiece's
//                       model file
//   model.safetensors   the latest parameters
//   best.safetensors    the best parameters in validation; before the first validation, and
//                       without validation data, the latest
//   state.safetensors   the state: parameters, the best ones, Adam's moments, counters
//   train.jsonl         a line for each epoch, each validation, and each end of a run
//   checkpoint-N.safetensors   if requested: the parameters after update N, when a validation was
//                       due; only the last ones stay
//
// Each file is written to a temporary name, synced and renamed, so that it is either the complete
// old or the complete new one. The state alone determines where a run stands: it holds the
// parameters, so that no other file need match it. A save writes train.jsonl, then the state, then
// best.safetensors and model.safetensors. If the process ends between two of these writes, nothing
// is lost: resuming truncates train.jsonl to the length recorded in the state, and rewrites the two
// models from the state.
//
// The parameters of an interrupted and resumed run are bit-identical to those of an uninterrupted
// one, for any number of threads: batches depend on (seed, epoch), dropout on (seed, update,
// micro-batch), and the learning rate on the update; a batch is split into micro-batches by its
// size alone, and their gradients are summed in a fixed tree. A resumed run may have another
// budget: where a run ends does not change its updates. Validations do not change parameters. If
// they are due by time, the clock decides which parameters are validated and written to
// checkpoints, and when early stopping ends the run. The validation at the end of a run is marked
// as such in train.jsonl, and takes no part in early stopping: an uninterrupted run would not have
// it.
namespace qkv::app {

// The options of a run.
struct TrainingOptions {
  // The path of the training data: tab-separated text, one sentence pair per line; "-" is standard
  // input. config.json has the absolute path, so that the run can be resumed from any directory.
  std::string data{};
  std::string valid{};      // path of the validation data; empty: none
  Index source_column = 0;  // index of the source's column, from 0
  Index target_column = 1;  // index of the target's column, from 0
  // True if lines of the data that are no sentence pairs (not UTF-8, too few columns, an empty
  // text) are left out; false if they are errors.
  bool skip_bad = false;
  Tokenization tokenization = Tokenization::kCharacter;
  SubwordOptions subwords{};  // for Tokenization::kSubword
  LetterCase letters = LetterCase::kKept;
  // Rarer tokens are unknown. It must be 1 for subwords, which are never unknown.
  Index min_count = 1;
  Index max_length = 200;  // sentence pairs with more tokens in either text are left out

  TranslatorConfig model{};  // the data determines the sizes of the vocabularies

  // The loss of an update is the mean over the target tokens of a batch, which has at most
  // batch_tokens tokens, padding included, or is a single longer sentence pair.
  Index batch_tokens = 2048;
  Schedule schedule{.rate = 2e-3, .warmup = 100, .decay = 500};
  double clip = 1;  // maximum norm of the gradients; infinity: no clipping
  AdamOptions adam{};
  // The interval of validations, each of which writes a line to train.jsonl. A time is counted from
  // the end of one validation to the next, over all runs in the folder.
  Budget validate_every{.epochs = 1};
  // The most validation sentences to translate; the first ones are taken.
  Index valid_translate = 2000;
  BestBy best = BestBy::kBleu;  // the criterion for the best validation
  // The run ends after that many validations in a row without improvement; 0: never.
  Index patience = 0;
  std::uint64_t seed = 0;

  // The following options may change from one run in the folder to the next.
  Budget after{.epochs = 10};         // the budget of all runs together
  Budget save_every{.updates = 500};  // the interval of saves; a run also saves at its end
  // The number of checkpoints to keep: the last ones. A checkpoint is written when a validation is
  // due, even without validation data.
  Index keep = 0;
  Executor executor{};
  // The processes that train together, each on its part of a batch; null: this one alone. The
  // parameters have the same bits for any number of processes. All of them call train_translation()
  // with equal options, and read the data, which cannot be standard input. Only the first one uses
  // the folder and calls the hooks (but for lone_error, which any of them may call).
  Ranks* ranks = nullptr;
};

// The progress of training, reported after each update.
struct TrainingProgress {
  Spent spent{};
  Index batch = 0;  // batches of the current epoch that are done
  Index batches = 0;
  double loss = 0;                       // per target token, of the last update
  double tokens_per_second = 0;          // target tokens, with end tokens, in this run
  std::optional<double> seconds_left{};  // until the first limit of the budget; empty: no limits
};

// A sentence of the validation data, its translation by the model and its first reference.
struct ValidationSample {
  std::string source{};
  std::string translation{};
  std::string reference{};
};

// The result of a validation: the mean loss over target tokens (including end tokens), without
// dropout and label smoothing, and scores of the greedy translations of the first `translated`
// sentences. Sentence pairs with equal sources are one sentence with several references.
struct ValidationScore {
  double loss = 0;  // its exponential is the perplexity
  double bleu = 0;  // 0 to 100, as `qkv score` computes it
  // True if BLEU can rank translations, that is if a reference has the four tokens that BLEU needs:
  // with shorter references, only wrong translations have a BLEU above 0.
  bool has_bleu = false;
  Index exact = 0;  // translations that equal a reference
  Index translated = 0;
  ValidationSample sample{};  // the update selects the sentence
};

// A validation, reported when it is done.
struct TrainingValidation {
  Spent spent{};
  Index batch = 0;  // batches of the current epoch that are done
  Index batches = 0;
  ValidationScore score{};
  bool is_best = false;  // better than all validations before
  // The share of updates since the last line of train.jsonl without `end` whose gradients were
  // clipped; empty if there were no updates, or no clipping.
  std::optional<double> clipped{};
};

struct TrainingHooks {
  std::function<void(const TrainingProgress&)> progress{};
  std::function<void(const TrainingValidation&)> validation{};
  // Called with a warning about each data file of which lines were skipped, about validation pairs
  // that are training pairs, and about a validation that resuming discards.
  std::function<void(const std::string&)> warning{};
  // Called before subwords are learned, which may take long, with the number of pieces to learn and
  // of the sentence pairs to learn from.
  std::function<void(Index pieces, Index pairs)> learning{};
  // Called before an error is thrown that the other ranks do not know of: the callee must end the
  // processes of all ranks.
  std::function<void()> lone_error{};
  // If it becomes true, the run is saved and ends. It may be null and must outlive the call. With
  // several ranks, any rank's flag ends the run, after an update or during a validation.
  const std::atomic<bool>* stop = nullptr;
};

enum class TrainingEnd { kBudget, kPatience, kStopped };

// The outcome of a run.
struct TrainingReport {
  TrainingEnd end = TrainingEnd::kBudget;
  Spent spent{};                   // by all runs in the folder
  std::optional<Index> resumed{};  // the update from which this run resumed; empty: a new run
  Index pairs = 0;                 // sentence pairs of the training data that are used
  Index left_out = 0;              // sentence pairs that are longer than max_length
  Index source_tokens = 0;         // sizes of the vocabularies
  Index target_tokens = 0;
  Index parameters = 0;
  double loss = 0;  // per target token, of the last update
  // The validation of the latest parameters; empty if they were not validated.
  std::optional<ValidationScore> valid{};
  Quality best{};                  // of best.safetensors
  BestBy best_by = BestBy::kBleu;  // the criterion for the best
};

// The error of a loss, gradient or parameter that is not finite. The folder holds the last save,
// whose parameters are finite.
class QKV_API Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Diverged() override;
};

// The error of a folder that holds a run with other settings or data, and of ranks that differ in
// folder, CPU target, settings or data. what() shows differences.
class QKV_API RunMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~RunMismatch() override;
};

// Trains in the folder until a budget is used up, validation stops improving or the flag is set;
// resumes from the folder's state if there is one. Throws InputError for data or a folder's files
// that cannot be read (a line that is no sentence pair is an error unless skip_bad is set),
// OutputError if the folder cannot be written or another process holds it, Error for invalid
// options, Cancelled if the flag is set while the data are read, RunMismatch, Diverged. With
// several ranks, an error before the first update is thrown by the lowest rank that has one, and
// OtherRankFailed by the others.
QKV_API TrainingReport train_translation(const TrainingOptions& options, const std::string& folder,
                                         const TrainingHooks& hooks = {});

// True if the folder holds a run, that is a config.json.
QKV_API bool holds_run(const std::string& folder);

// The options with which the run in a folder resumes. The executor and the settings named in
// `given`, as in config.json ("learning_rate"), are those of `typed`; all others are the run's.
// train_translation() checks that the result is the same run. Throws InputError for a folder
// without a run or with a config.json that cannot be read; Error for an unknown name.
QKV_API TrainingOptions options_of_run(const std::string& folder, const TrainingOptions& typed,
                                       std::span<const std::string> given);

// The names of the settings that an option of the command line sets; "--cols" sets two.
QKV_API std::vector<std::string> settings_of_option(std::string_view option);

enum class RunModel { kBest, kLast };

// The paths of a RUN folder's files except checkpoints, whether or not they exist.
QKV_API std::vector<std::string> run_files(const std::string& folder);

// The paths of the checkpoints in a folder, in the order of updates. Throws InputError for a folder
// that cannot be read.
QKV_API std::vector<std::string> run_checkpoints(const std::string& folder);

// True if the name is that of a checkpoint in a RUN folder.
QKV_API bool is_checkpoint_name(std::string_view name);

// Reads the best or latest model of a RUN folder. Throws InputError for a folder without a run, for
// missing or malformed files; Cancelled if `stop` is set.
QKV_API TranslationModel read_translation_model(const std::string& folder, RunModel which,
                                                const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRANSLATION_RUN_H_
