// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
#define QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_

#include <string>

#include "translator/training/translation_run.h"

// The texts of `qkv train`, during training and at its end.

std::string text_of(const qkv::app::TrainingProgress& progress);
// A line with the scores, then a sentence, its translation and its reference on a line each.
std::string text_of(const qkv::app::TrainingValidation& validation);
// `budget` is budget_text() of the run.
std::string text_of(const qkv::app::TrainingReport& report, const std::string& folder,
                    const qkv::app::TrainingOptions& options, const std::string& budget);

// "the budget of 5e", or "the budget of 10e, the default of --after,".
std::string budget_text(const qkv::app::Budget& after, bool is_default);

// A budget with which a run that has used up `after` can continue: what the run has spent, plus
// `after`.
std::string longer(const qkv::app::Budget& after, const qkv::app::Spent& spent);

#endif  // QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
