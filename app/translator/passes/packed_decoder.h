// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_PACKED_DECODER_H_
#define QKV_TRANSLATOR_PASSES_PACKED_DECODER_H_

#include <qkv/app/translator.h>

#include "translator/passes/output_layer.h"

namespace qkv::app {

// The decoder's weights, packed for matrix products.
struct PackedDecoder {
  PackedDecoder(const TranslatorConfig& config, const TranslatorLayers& layers, Context& context)
      : cell(layers.decoder, context),
        readout(layers.readout.parameters(), context),
        output(packed_output(config, layers, context)) {}
  // Shares the packed weights of `packed` and computes on another context.
  PackedDecoder(const PackedDecoder& packed, Context& context)
      : cell(packed.cell, context),
        readout(packed.readout, context),
        output(packed.output, context) {}

  GruCell::Steps cell;
  PackedLinear readout;
  PackedLinear output;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_PACKED_DECODER_H_
