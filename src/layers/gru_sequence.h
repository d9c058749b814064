// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRU_SEQUENCE_H_
#define QKV_LAYERS_GRU_SEQUENCE_H_

#include <qkv/layers/gru.h>

#include "layers/gru_loops.h"

// A gated recurrent unit over padded sequences, in one or two directions. A task computes all steps
// of up to kGruRows batch entries in one direction.
namespace qkv::layers {

struct GruSequence {
  const GruParameters* parameters[2] = {};
  Index directions = 1;
  Index input = 0;
  Index hidden = 0;
  Index B = 0;
  Index T = 0;
  const Index* lengths = nullptr;       // [B]
  const Gru::Packed* packed = nullptr;  // null: a forward pass packs the weights
};

template <class T>
void pack_gru(std::string_view function, const GruParameters& parameters, Tensor& ih, Tensor& hh,
              Context& context);

// The input of a forward pass and the results that it saves, C-ordered as in Gru::Saved. The
// results are absent if no backward pass follows.
struct GruTensors {
  const Tensor& x;
  View states{};
  View gates{};
};

template <class T>
void gru_forward(const GruSequence& s, const GruTensors& tensors, const ConstView& state,
                 const GruOutputs& outputs, Context& context);

// Computes the gradients of the inputs, and writes the gradients of the gates' sums, 0 beyond each
// sequence, to dgates [directions,B,T,4*hidden]. The parameters' gradients are left to
// gru_parameter_gradients().
template <class T>
void gru_backward(const GruSequence& s, const Gru::Saved& saved, const GruOutputGradients& from,
                  const View& dgates, const GruInputGradients& to, Context& context);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_GRU_SEQUENCE_H_
