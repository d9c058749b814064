// SPDX-License-Identifier: Apache-2.0
#include "translator/optimiser/gradients.h"

#include <cmath>
#include <cstddef>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include <qkv/error.h>
#include <qkv/target.h>

#include "core/storage.h"
#include "reference/update.h"
#include "translator/optimiser/parameter_lists.h"
#include "translator/optimiser/pieces.h"

namespace qkv::app {
namespace {

template <class T>
kernels::UpdateKernels<T> plain_loops() {
  return {&reference::adam<T>, &reference::squares<T>, &reference::sum_sets<T>};
}

template <class T>
using Pointers = std::vector<T*>;

// Pointers to the gradients of all parameters in all sets: that of parameter p in set n has the
// index p * sets.size() + n, and is null if the parameter's type is not T.
template <class T>
Pointers<T> starts_in(std::span<const std::vector<TrainedParameter>> sets) {
  Pointers<T> starts;
  for (std::size_t p = 0; p < sets[0].size(); ++p) {
    const bool has_type = sets[0][p].gradient.dtype() == dtype_of<T>;
    for (const auto& set : sets) {
      starts.push_back(has_type ? set[p].gradient.template as<T>() : nullptr);
    }
  }
  return starts;
}

}  // namespace

ForTypes<kernels::UpdateKernels> update_kernels_in_use() {
  const std::string_view target = cpu_target();
  for (const kernels::Target candidate : kernels::kTargets) {
    if (kernels::name_of(candidate) != target) continue;
    return {kernels::update_kernels<float>(candidate), kernels::update_kernels<double>(candidate)};
  }
  return {plain_loops<float>(), plain_loops<double>()};
}

void check_parameters(std::string_view function, std::span<const TrainedParameter> list) {
  for (const TrainedParameter& p : list) {
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

double gradient_norm(std::span<const TrainedParameter> list, const Executor& executor) {
  check_parameters("gradient_norm", list);
  const auto kernels = update_kernels_in_use();
  const std::vector<Piece> pieces = pieces_of(list);
  std::vector<double> squares(pieces.size());
  for_each_piece(executor, pieces, [&](const Piece& piece, std::size_t n) {
    const View& gradient = list[piece.parameter].gradient;
    core::dispatch(gradient.dtype(), [&]<class T>() {
      squares[n] = kernels.template of<T>().squares(gradient.as<T>() + piece.first, piece.count);
    });
  });
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

void scale_gradients(std::span<const TrainedParameter> list, double factor) {
  check_parameters("scale_gradients", list);
  for (const TrainedParameter& p : list) {
    core::dispatch(p.gradient.dtype(), [&]<class T>() {
      for (T& g : elements<T>(p.gradient)) g = static_cast<T>(g * factor);
    });
  }
}

double clip_factor(double norm, double most) {
  return std::isfinite(norm) && norm > most ? most / norm : 1;
}

double clip_gradients(std::span<const TrainedParameter> list, double most) {
  if (!(most > 0)) {
    throw Error("clip_gradients", "most", fmt::format("must be positive, got {}", most));
  }
  const double norm = gradient_norm(list);
  const double factor = clip_factor(norm, most);
  if (factor != 1) scale_gradients(list, factor);
  return norm;
}

void sum_tree(std::span<const std::vector<TrainedParameter>> sets, const Executor& executor) {
  for (const auto& set : sets) {
    check_parameters("sum_tree", set);
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
  if (sets.size() < 2) return;
  const auto kernels = update_kernels_in_use();
  const ForTypes<Pointers> starts{starts_in<float>(sets), starts_in<double>(sets)};
  const auto count = static_cast<Index>(sets.size());
  for_each_piece(executor, pieces_of(sets[0]), [&](const Piece& piece, std::size_t) {
    core::dispatch(sets[0][piece.parameter].gradient.dtype(), [&]<class T>() {
      T* const* const parts = starts.of<T>().data() + piece.parameter * sets.size();
      kernels.of<T>().sum_sets(parts, count, piece.first, piece.count);
    });
  });
}

}  // namespace qkv::app
