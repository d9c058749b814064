// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_
#define QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_

#include <atomic>
#include <span>
#include <string>

#include <qkv/app/translation_model.h>
#include <qkv/export.h>

namespace qkv::app {

// The average of the models in these files, at least one. Each parameter is summed in float64 over
// the files in their order, divided by the number of files, then rounded once to the first model's
// dtype. Counts of tokens and settings that describe training may differ between files, and are
// taken from the first one. Everything else that cannot be averaged must be equal in all files:
// vocabularies, style, sizes and the like. Throws InputError that names the file and the difference
// or the non-finite parameter; Cancelled if `stop` is set.
QKV_API TranslationModel average_models(std::span<const std::string> files,
                                        const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_
