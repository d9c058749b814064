// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_SEARCH_H_
#define QKV_MODELS_SEARCH_H_

#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "models/token_batch.h"

namespace qkv::app {

// Translator::translate. Beam search (Sutskever et al. 2014, section 3.2): at each step the `beam`
// best continuations of a source's hypotheses are kept; those that end are put aside, and as soon
// as there are `beam` of these, the best of them is the translation. A tie goes to the hypothesis
// that was ahead, then to the lower token.
std::vector<Translation> search(const TranslatorConfig& config, const TranslatorLayers& layers,
                                std::span<const TokenList> sources, const SearchOptions& options,
                                Context& context);

}  // namespace qkv::app

#endif  // QKV_MODELS_SEARCH_H_
