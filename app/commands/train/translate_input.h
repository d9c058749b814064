// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_
#define QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_

#include <string>

#include <qkv/app/translation_model.h>

#include "commands/shell/command.h"
#include "commands/train/translate.h"

// The input and the model of `qkv translate`.

// A model that is part of the program, with the option that selects it and that option's help text.
struct LinkedModel {
  const char* option;
  qkv::app::TranslationModel (*model)();
  const char* help;
};

// Adds a flag for each linked model.
void add_linked_models(const Command& command, TranslateOptions& options);
// The linked model that the options request; null if they name a RUN.
const LinkedModel* linked_model(const TranslateOptions& options);
// Throws UsageError unless the options request exactly one model.
void check_model_choice(const TranslateOptions& options);

// The input: the lines of a file, or one text.
struct Source {
  std::string file{};  // "-": standard input; empty: the input is `text`
  std::string text{};
};
// The input that the options name. Throws UsageError for words that are neither a file nor a text.
Source source_of(const TranslateOptions& options);

// Reads the requested model. Throws InputError for a RUN that is missing or is something else.
qkv::app::TranslationModel model_of(const TranslateOptions& options);

#endif  // QKV_COMMANDS_TRAIN_TRANSLATE_INPUT_H_
