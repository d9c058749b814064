// SPDX-License-Identifier: Apache-2.0
#include "layers/gru_parameters.h"

#include <limits>
#include <utility>

#include "core/message.h"

namespace qkv::layers {

GruParameters gru_parameters(std::string_view function, const GruConfig& config,
                             std::string suffix) {
  check_dtype(function, config.dtype);
  check_size(function, "input", config.input);
  check_size(function, "hidden", config.hidden);
  const Index H = config.hidden;
  // The gate values saved for each step are 4 H numbers.
  if (H > std::numeric_limits<Index>::max() / 4) {
    throw Error(function, "hidden", core::text("must be smaller, got ", H));
  }
  check_tensor(function, "input or hidden", config.dtype, {3 * H, config.input});
  check_tensor(function, "hidden", config.dtype, {3 * H, H});
  const auto bias = [&] { return config.bias ? Tensor(config.dtype, {3 * H}) : Tensor(); };
  return {std::move(suffix), Tensor(config.dtype, {3 * H, config.input}),
          Tensor(config.dtype, {3 * H, H}), bias(), bias()};
}

GruParameters zeros_like(const GruParameters& p) {
  return {p.suffix, zeros_like(p.weight_ih), zeros_like(p.weight_hh), zeros_like(p.bias_ih),
          zeros_like(p.bias_hh)};
}

void check_gradients(std::string_view function, const GruParameters& gradients,
                     const GruParameters& parameters) {
  const auto check = [&](const char* name, const Tensor& gradient, const Tensor& parameter) {
    check_gradient(function, std::string("gradients.") + name + parameters.suffix, gradient,
                   parameter);
  };
  check("weight_ih", gradients.weight_ih, parameters.weight_ih);
  check("weight_hh", gradients.weight_hh, parameters.weight_hh);
  check("bias_ih", gradients.bias_ih, parameters.bias_ih);
  check("bias_hh", gradients.bias_hh, parameters.bias_hh);
}

}  // namespace qkv::layers
