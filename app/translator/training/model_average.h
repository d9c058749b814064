// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_
#define QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_

#include <atomic>
#include <span>
#include <string>

#include <qkv/app/translation_model.h>
#include <qkv/export.h>

namespace qkv::app {

// The model whose parameters are the means of those in these model files, at least one: summed in
// float64 in the order of the files, then rounded once. What cannot be averaged must be the same in
// all: vocabularies, style, sizes and the like. The rest is the first model's: counts of words, and
// settings that concern training alone. Throws InputError, which names the file and what differs or
// is not finite; Cancelled if `stop` is set.
QKV_API TranslationModel average_models(std::span<const std::string> files,
                                        const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_MODEL_AVERAGE_H_
