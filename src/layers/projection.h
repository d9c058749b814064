// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_PROJECTION_H_
#define QKV_LAYERS_PROJECTION_H_

#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/layers/parameters.h>

// A linear layer before attention: y [..,O] = (x W^T + b) / divisor for x [..,I].
namespace qkv::layers {

// Computes y, which is resized. A divisor of 1 changes no bit.
void project(std::string_view function, const ConstView& x, const LinearParameters& p,
             double divisor, Tensor& y, Context& context);

// The buffers for one projection's gradients. Gradients without a buffer are not computed.
struct ProjectionGradients {
  View x{};
  Write write_x = Write::kOverwrite;
  LinearParameters& parameters;
  Write write_parameters = Write::kOverwrite;

  bool asked() const noexcept {
    return x.given() || parameters.weight.given() || parameters.bias.given();
  }
};

// Computes the gradients. Divides `dy` in place; does nothing if no gradient is requested.
void project_backward(std::string_view function, const ConstView& x, const LinearParameters& p,
                      double divisor, Tensor& dy, const ProjectionGradients& gradients,
                      Context& context);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_PROJECTION_H_
