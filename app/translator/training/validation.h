// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_VALIDATION_H_
#define QKV_TRANSLATOR_TRAINING_VALIDATION_H_

#include <atomic>

#include <qkv/app/translation_model.h>

#include "translator/training/translation_data.h"
#include "translator/training/translation_run.h"

namespace qkv::app {

// Computes the loss of all sentence pairs, and translates and scores `pairs.sentences`. `update`
// selects the sentence that is shown as the sample, so that validations show different ones. The
// result is bit-identical on any executor. Throws Cancelled if the flag `stop`, which may be null,
// is set.
ValidationScore validate(const TranslationModel& model, const EncodedPairs& pairs, Index update,
                         const Executor& executor, const std::atomic<bool>* stop);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_VALIDATION_H_
