// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_LAYERS_GRADIENTS_H_
#define QKV_TESTS_LAYERS_GRADIENTS_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/support.h"
#include "tests/support/compare.h"

// Compares gradients with central differences in float64.
namespace qkv::test {

// An array and its gradient from a backward pass, both C-ordered float64.
struct CheckedArray {
  std::string name;
  View value;
  ConstView gradient;
};

// Compares a gradient with (f(x+h) - f(x-h)) / 2h, with h = cbrt(eps) max(1,|x|): the rounding
// error eps|f|/h and the truncation error h^2|f'''|/6 are then of equal size, about 4e-11 for
// numbers near 1. The bound leaves two orders of magnitude for f and its third derivative.
template <class Loss>
void expect_gradient(const CheckedArray& array, Loss& loss, const std::string& replay) {
  const std::span<double> x(array.value.as<double>(),
                            static_cast<std::size_t>(array.value.element_count()));
  std::vector<double> want;
  for (double& element : x) {
    const double at = element;
    const double h =
        std::cbrt(std::numeric_limits<double>::epsilon()) * std::max(1.0, std::fabs(at));
    const double above = at + h;
    const double below = at - h;
    element = above;
    const double high = loss();
    element = below;
    const double low = loss();
    element = at;
    want.push_back((high - low) / (above - below));
  }
  EXPECT_TRUE(compare(array.name, array.gradient, want, {1e-7, 5e-9}, replay));
  // A gradient of zeros would test nothing.
  EXPECT_TRUE(std::any_of(want.begin(), want.end(), [](double d) { return std::fabs(d) > 1e-3; }))
      << array.name << ", " << replay;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.values<double>().size(); ++n) {
    sum += a.values<double>()[n] * b.values<double>()[n];
  }
  return sum;
}

// The loss sum(out * r) + sum(lse * s) + sum(weights * t) of a forward pass of `layer`, with fixed
// random r, s, t. The constructor takes the shapes of out and of the weights, [..,Tq,Tk].
template <class Layer, class Inputs>
class LayerLoss {
 public:
  LayerLoss(const Layer& layer, Inputs inputs, const RunState& run, const Dims& out,
            const Dims& weights)
      : layer_(layer), inputs_(std::move(inputs)), run_(run) {
    const Dims lse = core::sub_dims(weights, 0, weights.rank() - 1);
    out_ = Tensor(DType::kFloat64, out);
    lse_ = Tensor(DType::kFloat64, lse);
    weights_ = Tensor(DType::kFloat64, weights);
    d_out_ = random_tensor(DType::kFloat64, out, 101);
    d_lse_ = random_tensor(DType::kFloat64, lse, 102);
    d_weights_ = random_tensor(DType::kFloat64, weights, 103);
  }

  double operator()() {
    RunState run = run_;  // each pass takes the same step
    layer_.forward(inputs_, run, saved_, {.out = out_, .lse = lse_, .weights = View(weights_)});
    return dot(out_, d_out_) + dot(lse_, d_lse_) + dot(weights_, d_weights_);
  }

  template <class InputGradients>
  void backward(const InputGradients& d, typename Layer::Parameters& gradients) {
    (*this)();
    layer_.backward(saved_, {d_out_, d_lse_, ConstView(d_weights_)}, d, gradients);
  }

 private:
  const Layer& layer_;
  Inputs inputs_;
  RunState run_;
  typename Layer::Saved saved_;
  Tensor out_, lse_, weights_;
  Tensor d_out_, d_lse_, d_weights_;
};

// Calls expect_gradient() for `arrays` and for every parameter of the layer. Returns the number of
// parameters.
template <class Layer, class Gradients, class Loss>
int expect_gradients(const std::vector<CheckedArray>& arrays, Layer& layer, Gradients& gradients,
                     Loss& loss, const std::string& replay) {
  for (const CheckedArray& array : arrays) expect_gradient(array, loss, replay);
  int parameters = 0;
  for_each_parameter(layer, gradients, [&](const auto& p, Tensor& gradient) {
    expect_gradient({p.name, p.value, gradient}, loss, replay);
    ++parameters;
  });
  return parameters;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_LAYERS_GRADIENTS_H_
