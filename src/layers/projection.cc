// SPDX-License-Identifier: Apache-2.0
#include "layers/projection.h"

#include "core/shapes.h"
#include "layers/attend.h"
#include "layers/linear_products.h"

namespace qkv::layers {
namespace {

template <class T>
void divide_values(Tensor& tensor, T divisor) {
  for (T& value : tensor.values<T>()) value /= divisor;
}

void divide(Tensor& tensor, double divisor) {
  if (divisor == 1) return;
  if (tensor.dtype() == DType::kFloat64) {
    divide_values(tensor, divisor);
  } else {
    divide_values(tensor, static_cast<float>(divisor));
  }
}

}  // namespace

void project(std::string_view function, const ConstView& x, const LinearParameters& p,
             double divisor, Tensor& y, Context& context) {
  Dims shape = core::sub_dims(x.shape(), 0, x.rank() - 1);
  shape.push_back(p.weight.size(0));
  resize(y, x.dtype(), shape);
  linear_forward(function, x, p, y, context);
  divide(y, divisor);
}

void project_backward(std::string_view function, const ConstView& x, const LinearParameters& p,
                      double divisor, Tensor& dy, const ProjectionGradients& gradients,
                      Context& context) {
  if (!gradients.asked()) return;
  divide(dy, divisor);
  linear_backward_parameters(function, x, dy, gradients.parameters, gradients.write_parameters,
                             context);
  if (gradients.x.given()) {
    linear_backward_input(function, dy, p, gradients.x, gradients.write_x, context);
  }
}

}  // namespace qkv::layers
