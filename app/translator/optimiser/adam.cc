// SPDX-License-Identifier: Apache-2.0
#include "translator/optimiser/adam.h"

#include <cstddef>

#include <fmt/format.h>

#include <qkv/error.h>

#include "core/adam_factors.h"
#include "core/elementary.h"
#include "core/storage.h"
#include "translator/optimiser/parameter_lists.h"
#include "translator/optimiser/pieces.h"

namespace qkv::app {
namespace {

// The least epsilon. It must not be 0 in float32 either, since the update of a parameter whose
// gradient has always been 0 is 0 / epsilon.
constexpr double kLeastEpsilon = 1e-30;

void check_range(std::string_view name, double value, double end) {
  if (value >= 0 && value < end) return;
  throw Error("Adam", name, fmt::format("must be in [0,{}), got {}", end, value));
}

// The factors of update number `update` (from 1) for a parameter of this rank.
template <class T>
core::AdamFactors<T> factors(const AdamOptions& options, const AdamStep& step, Index update,
                             int rank) {
  const auto t = static_cast<double>(update);
  const double decay = rank < 2 ? 0 : options.weight_decay;
  return {.gradient = static_cast<T>(step.gradient_factor),
          .beta1 = static_cast<T>(options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .one_minus_beta1 = static_cast<T>(1 - options.beta1),
          .one_minus_beta2 = static_cast<T>(1 - options.beta2),
          .epsilon = static_cast<T>(options.epsilon),
          .m_rate = static_cast<T>(step.learning_rate / (1 - core::Powers(options.beta1).of(t))),
          .v_factor = static_cast<T>(1 / (1 - core::Powers(options.beta2).of(t))),
          .decay_factor = static_cast<T>(1 - step.learning_rate * decay)};
}

}  // namespace

Adam::Adam(std::span<const TrainedParameter> list, const AdamOptions& options) : options_(options) {
  check_range("beta1", options.beta1, 1);
  check_range("beta2", options.beta2, 1);
  if (!(options.epsilon >= kLeastEpsilon && options.epsilon < 1)) {
    throw Error("Adam", "epsilon",
                fmt::format("must be in [{},1), got {}", kLeastEpsilon, options.epsilon));
  }
  check_range("weight_decay", options.weight_decay, 1e6);
  check_parameters("Adam", list);
  for (const TrainedParameter& p : list) {
    const Dims& shape = p.value.shape();
    moments_.push_back({p.name, Tensor(p.value.dtype(), shape), Tensor(p.value.dtype(), shape)});
  }
}

void Adam::step(std::span<const TrainedParameter> list, const AdamStep& step,
                const Executor& executor) {
  check_parameters("Adam::step", list);
  if (list.size() != moments_.size()) {
    throw Error("Adam::step", "list",
                fmt::format("must have the {} parameters of the constructor, got {}",
                            moments_.size(), list.size()));
  }
  for (std::size_t n = 0; n < list.size(); ++n) {
    const AdamMoments& known = moments_[n];
    if (known.name == list[n].name && known.m.dtype() == list[n].value.dtype() &&
        known.m.shape() == list[n].value.shape()) {
      continue;
    }
    throw Error("Adam::step", list[n].name,
                fmt::format("must be the constructor's {} {}, got {}", known.name,
                            describe(known.m.view()), describe(list[n].value)));
  }
  const auto kernels = update_kernels_in_use();
  ++updates_;
  for_each_piece(executor, pieces_of(list), [&](const Piece& piece, std::size_t) {
    const TrainedParameter& p = list[piece.parameter];
    AdamMoments& moments = moments_[piece.parameter];
    core::dispatch(p.value.dtype(), [&]<class T>() {
      const auto at = [&](const View& view) { return view.as<T>() + piece.first; };
      kernels.of<T>().adam(factors<T>(options_, step, updates_, p.value.rank()), at(p.gradient),
                           at(moments.m.view()), at(moments.v.view()), at(p.value), piece.count);
    });
  });
}

}  // namespace qkv::app
