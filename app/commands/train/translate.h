// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRANSLATE_H_
#define QKV_COMMANDS_TRAIN_TRANSLATE_H_

#include <string>
#include <vector>

#include <qkv/app/translation_model.h>

#include "commands/shell/outputs.h"
#include "commands/train/translation.h"

// `qkv translate`: lines -> translations, streamed or to files.

struct TranslateOptions {
  std::string run{};
  bool has_run = false;              // "" is none, but may be a text
  std::vector<std::string> input{};  // a file, or the words of a text; none or "-": standard input
  struct Flag {
    bool given = false;
  };
  std::vector<Flag> linked{};  // for each linked model; then RUN is the first word of the text
  qkv::app::RunModel model = qkv::app::RunModel::kBest;
  qkv::app::SearchOptions search{};
  qkv::app::UnknownTokens unknown = qkv::app::UnknownTokens::kCopiedIfLooked;
  bool scores = false;
  bool show = false;
  bool skip_bad = false;  // lines that are too long are no error
  OutputOptions outputs{};
};

struct TranslatedLine {
  std::string line{};
  qkv::app::TranslatedText translation{};
};

// Whether there is attention to show.
bool has_attention(const TranslatedLine& line);

// A translation as a line of text, with its log-probability if requested.
std::string line_of(const TranslatedLine& translated, const TranslateOptions& options);

// The forms of files; `lines` must outlive them, and may be filled later.
Results translate_forms(const std::vector<TranslatedLine>& lines, const TranslateOptions& options);

// Rows are tokens of the translation, columns those of the line. There must be attention.
qkv::app::Picture alignment(const TranslatedLine& translated);

#endif  // QKV_COMMANDS_TRAIN_TRANSLATE_H_
