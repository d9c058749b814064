// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRANSLATE_H_
#define QKV_COMMANDS_TRAIN_TRANSLATE_H_

#include <optional>
#include <string>
#include <vector>

#include <qkv/app/translation_model.h>

#include "commands/shell/outputs.h"
#include "commands/train/translation.h"

// The options and output forms of `qkv translate`, which translates lines to lines or to files.

struct TranslateOptions {
  std::string run{};
  // True if RUN was given. An empty RUN names no model, but may be the text of a linked model.
  bool has_run = false;
  // A file, or the words of a text; none or "-": standard input.
  std::vector<std::string> input{};
  struct Flag {
    bool given = false;
  };
  // One flag for each linked model. If one is given, RUN is the first word of the text.
  std::vector<Flag> linked{};
  qkv::app::RunModel model = qkv::app::RunModel::kBest;
  qkv::app::SearchOptions search{};
  qkv::app::UnknownTokens unknown = qkv::app::UnknownTokens::kCopiedIfLooked;
  bool scores = false;
  bool show = false;
  bool skip_bad = false;  // lines too long, not UTF-8 or without the column are no error
  std::optional<qkv::Index> column{};  // of a file's lines, from 0
  OutputOptions outputs{};
};

struct TranslatedLine {
  std::string line{};
  qkv::app::TranslatedText translation{};
};

// True if the translation has attention weights to show.
bool has_attention(const TranslatedLine& line);

// A translation as a line of text, with its log-probability if requested.
std::string line_of(const TranslatedLine& translated, const TranslateOptions& options);

// The results in the output forms. `lines` and `options` must outlive the results; `lines` may be
// filled later.
Results translate_forms(const std::vector<TranslatedLine>& lines, const TranslateOptions& options);

// A picture of the attention weights: rows are tokens of the translation, columns are tokens of the
// line. `translated` must have attention.
qkv::app::Picture alignment(const TranslatedLine& translated);

#endif  // QKV_COMMANDS_TRAIN_TRANSLATE_H_
