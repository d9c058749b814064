// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRANSLATION_H_
#define QKV_COMMANDS_TRAIN_TRANSLATION_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/translation_model.h>

#include "commands/shell/options.h"
#include "translator/training/translation_run.h"

// The options, checks and models that the commands on sentence pairs and translations share.

inline constexpr Choice<qkv::app::RunModel> kRunModels[] = {{"best", qkv::app::RunModel::kBest},
                                                            {"last", qkv::app::RunModel::kLast}};

inline constexpr const char* kRunHelp =
    "the folder that qkv train wrote, or a model file, such as its best.safetensors";

// The columns of source and target in a line, from 0.
struct PairColumns {
  qkv::Index source = 0;
  qkv::Index target = 1;
};

// Adds --cols S,T, two columns counted from 0. `usual` says in the help what the default is.
Option add_columns(const Command& command, qkv::Index& source, qkv::Index& target,
                   const std::string& usual = "default 0,1");
// The columns with which the run in a folder was trained; the default ones for a model file.
PairColumns columns_of_run(const std::string& run);
// The message of the error that a column has no text.
std::string no_text_in(qkv::Index column);

// Adds --model best|last.
void add_run_model(const Command& command, qkv::app::RunModel& model);
// Adds --beam N and --length-penalty X.
void add_search(const Command& command, qkv::app::SearchOptions& search);
// Throws UsageError for a penalty out of range.
void check_search(const qkv::app::SearchOptions& search);

// The number of tokens of a text, at `line` of `file`. Throws InputError for more than 4,096, since
// attention takes quadratic memory.
std::size_t count_tokens(const qkv::app::TranslationModel& model, std::string_view text,
                         const std::string& file, qkv::Index line);

// The purpose for which a batch of lines or sentence pairs is given to the model.
enum class Batch {
  kPass,  // one pass of the model, which takes memory for all tokens of the batch, with padding
  // A search, which begins a line when another has ended. Only at the end of a batch does it run
  // fewer lines than fit, so its batches are larger.
  kSearch,
};
// True if `lines` lines with `tokens` tokens are a full batch.
bool is_full(Batch batch, std::size_t lines, std::size_t tokens);

// The files that read_model() may read, for check_inputs().
std::vector<std::string> model_files(const std::string& path);

// Reads a model from the folder that `qkv train` wrote, or from a model file. Throws InputError.
qkv::app::TranslationModel read_model(const std::string& path, qkv::app::RunModel model);

#endif  // QKV_COMMANDS_TRAIN_TRANSLATION_H_
