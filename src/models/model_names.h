// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_MODEL_NAMES_H_
#define QKV_MODELS_MODEL_NAMES_H_

#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>

#include "text/choice.h"

// What settings of a translator are called, in its file and by who types them.
namespace qkv::app {

inline constexpr Choice<TranslatorAttention> kTranslatorAttentions[] = {
    {"additive", TranslatorAttention::kAdditive},    {"dot", TranslatorAttention::kDot},
    {"scaled_dot", TranslatorAttention::kScaledDot}, {"bilinear", TranslatorAttention::kBilinear},
    {"multihead", TranslatorAttention::kMultiHead},  {"none", TranslatorAttention::kNone}};
inline constexpr Choice<Tokenization> kTokenizations[] = {{"char", Tokenization::kCharacter},
                                                          {"word", Tokenization::kWord}};

}  // namespace qkv::app

#endif  // QKV_MODELS_MODEL_NAMES_H_
