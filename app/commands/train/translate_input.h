// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_
#define QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_

#include <string>

#include <qkv/app/translation_model.h>

#include "commands/shell/command.h"
#include "commands/train/translate.h"

// What `qkv translate` translates, and with which model.

// A model that is part of the program.
struct LinkedModel {
  const char* option;
  qkv::app::TranslationModel (*model)();
  const char* help;
};

// An option for each linked model.
void add_linked_models(const Command& command, TranslateOptions& options);
// The one that is asked for; null: that of a RUN.
const LinkedModel* linked_model(const TranslateOptions& options);
// Throws UsageError unless one model is asked for.
void check_model_choice(const TranslateOptions& options);

// The lines of a file, or one text.
struct Source {
  std::string file{};  // "-": standard input; empty: the text
  std::string text{};
};
// Throws UsageError for words that are neither a file nor a text.
Source source_of(const TranslateOptions& options);

// Throws InputError for a RUN that is not there, or is something else.
qkv::app::TranslationModel model_of(const TranslateOptions& options);

#endif  // QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_
