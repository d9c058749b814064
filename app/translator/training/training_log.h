// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_

#include <optional>
#include <string>

#include "translator/training/translation_run.h"

// The file train.jsonl: one JSON object per line, in the order of updates.
// docs/translator-reference.md describes the fields.
namespace qkv::app {

struct LogLine {
  Spent spent{};
  // The reason why a run ended here, "budget" or "stopped"; empty if it did not end here.
  std::string end{};
  std::optional<double> loss{};  // mean per target token since the last line without `end`
  double learning_rate = 0;
  double gradient_norm = 0;
  // The share of updates whose gradient was clipped; empty without updates or without clipping.
  std::optional<double> clipped{};
  // Target tokens per second since the last line without `end`.
  std::optional<double> tokens_per_second{};
  std::optional<TrainingValidation> validation{};
};

// The line as JSON, with its line feed.
std::string text_of(const LogLine& line);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_LOG_H_
