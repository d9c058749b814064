// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_TRAIN_PARAMETERS_H_
#define TESTS_TRAIN_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include <qkv/tensor.h>

#include "tests/layers/support.h"
#include "translator/optimiser/gradients.h"

namespace qkv::test {

// A matrix, a vector and an empty parameter with gradients. All numbers are drawn from the normal
// distribution; the gradients are multiplied by `scale`.
struct Weights {
  explicit Weights(DType dtype, std::uint64_t seed = 1, double scale = 1) {
    values.push_back(random_tensor(dtype, {5, 7}, seed));
    values.push_back(random_tensor(dtype, {3}, seed + 1));
    values.emplace_back(dtype, Dims{0, 4});
    draw_gradients(seed + 2, scale);
  }

  void draw_gradients(std::uint64_t seed, double scale = 1) {
    gradients.clear();
    for (const Tensor& value : values) {
      Tensor& g = gradients.emplace_back(random_tensor(value.dtype(), value.shape(), seed++));
      for (Index n = 0; n < g.element_count(); ++n) {
        const auto x = core::load<double>(g.dtype(), g.view().data(), n);
        core::store(g.dtype(), g.view().data(), n, scale * x);
      }
    }
  }
  std::vector<app::TrainedParameter> list() {
    const char* names[] = {"matrix", "vector", "empty"};
    std::vector<app::TrainedParameter> list;
    for (std::size_t n = 0; n < values.size(); ++n) {
      list.push_back({names[n], values[n].view(), gradients[n].view()});
    }
    return list;
  }

  std::vector<Tensor> values{};
  std::vector<Tensor> gradients{};
};

// The elements of some tensors, one tensor after the other.
inline std::vector<double> numbers(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& tensor : tensors) {
    for (Index n = 0; n < tensor.element_count(); ++n) {
      all.push_back(core::load<double>(tensor.dtype(), tensor.view().data(), n));
    }
  }
  return all;
}

}  // namespace qkv::test

#endif  // TESTS_TRAIN_PARAMETERS_H_
