// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_

#include <optional>
#include <string>

#include "translator/training/translation_run.h"

// train.jsonl: an object a line, in the order of updates. docs/translator.md has the fields.
namespace qkv::app {

struct LogLine {
  Spent spent{};
  std::string end{};             // why a run ended here: "budget" or "stopped"; "": it did not
  std::optional<double> loss{};  // per target token since the last line that has no end
  double learning_rate = 0;
  double gradient_norm = 0;
  std::optional<double> clipped{};  // share of the updates of the loss; none without clipping
  std::optional<double> tokens_per_second{};  // target tokens; as long as the loss
  std::optional<TrainingValidation> validation{};
};

// The line as JSON, with its line feed.
std::string text_of(const LogLine& line);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_
