// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_
#define QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_

#include <qkv/app/translator.h>

// The layer after the readout: its weight may be the target embedding's (Press and Wolf 2017).
namespace qkv::app {

// The width of t_i, which is a row's of that weight.
inline Index readout_width(const TranslatorConfig& config) {
  switch (config.tied_embeddings) {
    case TiedEmbeddings::kNone:
      return config.hidden;
    case TiedEmbeddings::kOutput:
      return config.embedding;
  }
  return config.hidden;
}

// The weight [target tokens, readout_width], of the layers or of their gradients.
template <class Parts>
auto& output_weight(const TranslatorConfig& config, Parts& parts) {
  return config.tied_embeddings == TiedEmbeddings::kOutput
             ? qkv::detail::parameters_of(parts.target_embedding).weight
             : qkv::detail::parameters_of(parts.output).weight;
}

// How the target embedding's gradient is written after the output layer's: tied, it holds a part.
inline Write embedding_after_output(const TranslatorConfig& config) {
  return config.tied_embeddings == TiedEmbeddings::kOutput ? Write::kAccumulate : Write::kOverwrite;
}

inline PackedLinear packed_output(const TranslatorConfig& config, const TranslatorLayers& layers,
                                  Context& context) {
  return {output_weight(config, layers), layers.output.parameters().bias, context};
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_
