// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_VALIDATION_H_
#define QKV_MODELS_VALIDATION_H_

#include <atomic>

#include "models/translation_data.h"
#include "models/translation_run.h"

namespace qkv::models {

// How many pairs, from the first, are also translated.
inline constexpr Index kMostTranslated = 200;

// The same bits on any executor. Throws Cancelled if the flag (which may be null) is set.
app::ValidationScore validate(const app::Translator& translator, const EncodedPairs& pairs,
                              const Executor& executor, const std::atomic<bool>* stop);

}  // namespace qkv::models

#endif  // QKV_MODELS_VALIDATION_H_
