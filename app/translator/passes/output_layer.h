// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_
#define QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_

#include <qkv/app/translator.h>

// The layer from the readout to logits. With tied embeddings its weight is that of the target
// embedding (Press and Wolf 2017).
namespace qkv::app {

// The width of the readout t_i and of the rows of the output layer's weight.
inline Index readout_width(const TranslatorConfig& config) {
  switch (config.tied_embeddings) {
    case TiedEmbeddings::kNone:
      return config.hidden;
    case TiedEmbeddings::kOutput:
      return config.embedding;
  }
  return config.hidden;
}

// The output layer's weight [target tokens, readout_width()], or its gradient if `parts` are
// gradients.
template <class Parts>
auto& output_weight(const TranslatorConfig& config, Parts& parts) {
  return config.tied_embeddings == TiedEmbeddings::kOutput
             ? qkv::detail::parameters_of(parts.target_embedding).weight
             : qkv::detail::parameters_of(parts.output).weight;
}

// How the decoder writes the target embedding's gradient after the output layer's backward pass.
// With tied embeddings, that gradient already holds the output layer's part.
inline Write embedding_after_output(const TranslatorConfig& config) {
  return config.tied_embeddings == TiedEmbeddings::kOutput ? Write::kAccumulate : Write::kOverwrite;
}

inline PackedLinear packed_output(const TranslatorConfig& config, const TranslatorLayers& layers,
                                  Context& context) {
  return {output_weight(config, layers), layers.output.parameters().bias, context};
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_OUTPUT_LAYER_H_
