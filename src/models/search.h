// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_SEARCH_H_
#define QKV_MODELS_SEARCH_H_

#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "models/token_batch.h"

namespace qkv::app {

// Translator::translate. Beam search (Sutskever et al. 2014, section 3.2): at each step, of all
// continuations of a source's hypotheses by one token, neither padding nor the start, those ends
// that are among the `beam` likeliest are put aside, and the `beam` likeliest others go on. When
// `beam` have ended, or when hypotheses have as many tokens as a translation may have, the best of
// those that have ended is the translation; when none has, of the others. A tie goes to the
// hypothesis that was ahead, then to the lower token.
std::vector<Translation> search(const TranslatorConfig& config, const TranslatorLayers& layers,
                                std::span<const TokenList> sources, const SearchOptions& options,
                                Context& context);

}  // namespace qkv::app

#endif  // QKV_MODELS_SEARCH_H_
