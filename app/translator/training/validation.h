// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_VALIDATION_H_
#define QKV_TRANSLATOR_TRAINING_VALIDATION_H_

#include <atomic>

#include <qkv/app/translation_model.h>
#include <qkv/ranks.h>

#include "translator/training/translation_data.h"
#include "translator/training/translation_run.h"

namespace qkv::app {

// Computes the loss of all sentence pairs, and translates and scores `pairs.sentences`. `update`
// selects the sentence that is shown as the sample, so that validations show different ones. The
// ranks share the work, and all get the result, which is bit-identical on any number of ranks and
// any executor. Throws Cancelled on all ranks if the flag `stop`, which may be null, is set on one.
ValidationScore validate(const TranslationModel& model, const EncodedPairs& pairs, Index update,
                         const Executor& executor, const std::atomic<bool>* stop, Ranks& ranks);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_VALIDATION_H_
