// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_GRADIENTS_H_
#define QKV_TRANSLATOR_OPTIMISER_GRADIENTS_H_

#include <span>
#include <string>
#include <vector>

#include <qkv/context.h>
#include <qkv/layers/parameters.h>
#include <qkv/view.h>

namespace qkv::app {

// A parameter and the loss's gradient with respect to it, of equal shape and dtype, float32 or
// float64, both in C order. The caller owns the memory.
struct TrainedParameter {
  std::string name{};
  View value{};
  View gradient{};
};

// The parameters and gradients of a layer, in the order of for_each_parameter(). The layer and the
// gradients must outlive the result.
template <class L, class G>
std::vector<TrainedParameter> trained_parameters(L& layer, G& gradients) {
  std::vector<TrainedParameter> list;
  for_each_parameter(layer, gradients, [&](const auto& parameter, Tensor& gradient) {
    list.push_back({parameter.name, parameter.value.view(), gradient.view()});
  });
  return list;
}

// The Euclidean norm of all gradients together. The squares are summed in float64
// (reference/update.h), in pieces of fixed length that are added in the order of the list, so that
// the result is bit-identical for any number of threads. It is NaN if any gradient is NaN.
double gradient_norm(std::span<const TrainedParameter> list, const Executor& executor = {});

// Multiplies every gradient. Each product is rounded once, to the gradient's type.
void scale_gradients(std::span<const TrainedParameter> list, double factor);

// The factor by which clipping to the norm `most` multiplies gradients of norm `norm`. It is 1 if
// `norm` is at most `most`, NaN or infinite.
double clip_factor(double norm, double most);

// Scales gradients whose norm is above `most` to the norm `most` (Pascanu, Mikolov, Bengio 2013,
// algorithm 1). Returns the norm before clipping. If this norm is NaN or infinite, the gradients
// stay unchanged. `most` is positive; infinity means no clipping.
double clip_gradients(std::span<const TrainedParameter> list, double most);

// Adds the gradients of all sets to those of the first: sets[n][p] is parameter p of set n. Each
// sum is computed in a fixed tree, ((0+1)+(2+3))+..., so that the result is bit-identical for any
// number of threads. Afterwards the other sets hold unspecified numbers.
void sum_tree(std::span<const std::vector<TrainedParameter>> sets, const Executor& executor = {});

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_GRADIENTS_H_
