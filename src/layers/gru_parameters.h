// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRU_PARAMETERS_H_
#define QKV_LAYERS_GRU_PARAMETERS_H_

#include <string>
#include <string_view>

#include <qkv/layers/gru.h>

#include "layers/gradients.h"

namespace qkv::layers {

// Checks `config` and returns zero parameters for one direction, whose names end in `suffix`.
// Throws Error that names `function`, the constructor that was called.
GruParameters gru_parameters(std::string_view function, const GruConfig& config,
                             std::string suffix);

GruParameters zeros_like(const GruParameters& parameters);

void check_gradients(std::string_view function, const GruParameters& gradients,
                     const GruParameters& parameters);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_GRU_PARAMETERS_H_
