// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
#define QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_

#include <string>

#include "translator/training/translation_run.h"

// The texts of `qkv train`, during training and at its end.

std::string text_of(const qkv::app::TrainingProgress& progress);
// A line with the scores, then a sentence, its translation and its reference on a line each.
std::string text_of(const qkv::app::TrainingValidation& validation);
std::string text_of(const qkv::app::TrainingReport& report, const std::string& folder);

// A budget with which a run that has used up `after` can continue: `after` added to what it has
// spent.
std::string longer(const qkv::app::Budget& after, const qkv::app::Spent& spent);

#endif  // QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
