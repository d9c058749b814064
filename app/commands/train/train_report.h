// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
#define QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_

#include <string>

#include "translator/training/translation_run.h"

// What `qkv train` says, while it runs and at its end.

std::string text_of(const qkv::app::TrainingProgress& progress);
// Some lines: the figures, then a sentence, its translation and its reference.
std::string text_of(const qkv::app::TrainingValidation& validation);
std::string text_of(const qkv::app::TrainingReport& report, const std::string& folder);

// A budget that a run which has spent so much has not used up: this one once more.
std::string longer(const qkv::app::Budget& after, const qkv::app::Spent& spent);

#endif  // QKV_COMMANDS_TRAIN_TRAIN_REPORT_H_
