// SPDX-License-Identifier: Apache-2.0
#include "train/gradients.h"

#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include <qkv/error.h>

#include "train/parameter_lists.h"

namespace qkv::train {
namespace {

// target += source, element by element.
void add(const View& source, const View& target) {
  with_real_type(target.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> from = elements<T>(source);
    const std::span<T> to = elements<T>(target);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  });
}

// The sums of one level of the tree: set n + stride is added to set n, for n = 0, 2 stride, ...
struct Level {
  std::span<const std::vector<app::TrainedParameter>> sets;
  std::size_t stride;

  Index sums() const {
    return static_cast<Index>((sets.size() - stride + 2 * stride - 1) / (2 * stride));
  }
  void run(Index sum) const {
    const std::size_t n = static_cast<std::size_t>(sum) * 2 * stride;
    for (std::size_t p = 0; p < sets[n].size(); ++p) {
      add(sets[n + stride][p].gradient, sets[n][p].gradient);
    }
  }
};

}  // namespace

void check_parameters(std::string_view function, std::span<const app::TrainedParameter> list) {
  for (const app::TrainedParameter& p : list) {
    const DType dtype = p.value.dtype();
    if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
      throw Error(function, p.name,
                  fmt::format("must be float32 or float64, got {}", describe(p.value)),
                  ErrorKind::kType);
    }
    if (p.gradient.dtype() != dtype || p.gradient.shape() != p.value.shape()) {
      throw Error(
          function, p.name,
          fmt::format("is {} but its gradient is {}", describe(p.value), describe(p.gradient)));
    }
    if (!p.value.is_contiguous() || !p.gradient.is_contiguous()) {
      throw Error(function, p.name, "and its gradient must be in C order");
    }
  }
}

}  // namespace qkv::train

namespace qkv::app {

double gradient_norm(std::span<const TrainedParameter> list) {
  train::check_parameters("gradient_norm", list);
  double sum = 0;
  for (const TrainedParameter& p : list) {
    train::with_real_type(p.gradient.dtype(), [&](auto zero) {
      for (const auto g : train::elements<decltype(zero)>(p.gradient)) {
        sum += static_cast<double>(g) * static_cast<double>(g);
      }
    });
  }
  return std::sqrt(sum);
}

void scale_gradients(std::span<const TrainedParameter> list, double factor) {
  train::check_parameters("scale_gradients", list);
  for (const TrainedParameter& p : list) {
    train::with_real_type(p.gradient.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (T& g : train::elements<T>(p.gradient)) g = static_cast<T>(g * factor);
    });
  }
}

double clip_gradients(std::span<const TrainedParameter> list, double most) {
  if (!(most > 0)) {
    throw Error("clip_gradients", "most", fmt::format("must be positive, got {}", most));
  }
  const double norm = gradient_norm(list);
  if (std::isfinite(norm) && norm > most) scale_gradients(list, most / norm);
  return norm;
}

void sum_tree(std::span<const std::vector<TrainedParameter>> sets, const Executor& executor) {
  for (const auto& set : sets) {
    train::check_parameters("sum_tree", set);
    if (set.size() != sets[0].size()) {
      throw Error("sum_tree", "sets",
                  fmt::format("must have as many parameters each, got {} and {}", sets[0].size(),
                              set.size()));
    }
    for (std::size_t p = 0; p < set.size(); ++p) {
      const View& first = sets[0][p].gradient;
      if (set[p].gradient.dtype() == first.dtype() && set[p].gradient.shape() == first.shape()) {
        continue;
      }
      throw Error("sum_tree", set[p].name,
                  fmt::format("must be alike in all sets, got {} and {}", describe(first),
                              describe(set[p].gradient)));
    }
  }
  for (std::size_t stride = 1; stride < sets.size(); stride *= 2) {
    train::Level level{sets, stride};
    executor.run(
        level.sums(),
        [](void* state, Index sum) { static_cast<const train::Level*>(state)->run(sum); }, &level);
  }
}

}  // namespace qkv::app
