// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_ATTENTION_FORM_H_
#define QKV_TRANSLATOR_PASSES_ATTENTION_FORM_H_

#include <string_view>

#include <qkv/app/translator.h>

namespace qkv::app {

// The parameters that a translator has for one kind of attention to the source.
struct AttentionForm {
  std::string_view name;       // name in model files and commands
  bool has_units = false;      // W_q, W_k and v of an additive score
  bool has_matrix = false;     // W of a bilinear score
  bool projects_keys = false;  // source states are projected to keys as wide as the decoder's state
  bool has_heads = false;      // queries, values and the heads' outputs are projected too
};

constexpr AttentionForm form_of(TranslatorAttention attention) {
  switch (attention) {
    case TranslatorAttention::kAdditive:
      return {.name = "additive", .has_units = true};
    case TranslatorAttention::kDot:
      return {.name = "dot", .projects_keys = true};
    case TranslatorAttention::kScaledDot:
      return {.name = "scaled_dot", .projects_keys = true};
    case TranslatorAttention::kBilinear:
      return {.name = "bilinear", .has_matrix = true};
    case TranslatorAttention::kMultiHead:
      return {.name = "multihead", .projects_keys = true, .has_heads = true};
    case TranslatorAttention::kNone:
      break;
  }
  return {.name = "none"};
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_ATTENTION_FORM_H_
