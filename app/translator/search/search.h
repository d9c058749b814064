// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_SEARCH_H_
#define QKV_TRANSLATOR_SEARCH_SEARCH_H_

#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/passes/token_batch.h"

namespace qkv::app {

// Implements Translator::translate as a beam search (Sutskever et al. 2014, section 3.2). A step
// considers all continuations of a source's hypotheses by one token, except padding and the start
// token. Continuations that end and are among the `beam` likeliest are set aside, and the `beam`
// likeliest others stay live. The search ends when `beam` hypotheses have ended and no live one has
// a better score than the best of these, or when live ones have the maximum length. The translation
// is the best hypothesis of those that have ended, or of the live ones if none has. In a tie, the
// continuation of the hypothesis that was better before is better, then that with the lower token.
std::vector<Translation> search(const TranslatorConfig& config, const TranslatorLayers& layers,
                                std::span<const TokenList> sources, const SearchOptions& options,
                                Context& context);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_SEARCH_H_
