// SPDX-License-Identifier: Apache-2.0
#include "train/adam.h"

#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include <qkv/error.h>

#include "train/parameter_lists.h"

namespace qkv::app {
namespace {

// A parameter that never had a gradient is divided by it, in the parameters' type.
constexpr double kLeastEpsilon = 1e-30;

void check_range(std::string_view name, double value, double end) {
  if (value >= 0 && value < end) return;
  throw Error("Adam", name, fmt::format("must be in [0,{}), got {}", end, value));
}

// The factors of one update, each rounded once to the parameters' type.
template <class T>
struct Factors {
  Factors(const AdamOptions& options, double rate, Index update)
      : beta1(static_cast<T>(options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        one_minus_beta1(static_cast<T>(1 - options.beta1)),
        one_minus_beta2(static_cast<T>(1 - options.beta2)),
        epsilon(static_cast<T>(options.epsilon)) {
    const auto t = static_cast<double>(update);
    m_rate = static_cast<T>(rate / (1 - std::pow(options.beta1, t)));
    v_factor = static_cast<T>(1 / (1 - std::pow(options.beta2, t)));
  }

  T beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon;
  T m_rate{};    // rate / (1 - beta1^t)
  T v_factor{};  // 1 / (1 - beta2^t)
};

template <class T>
void update(const TrainedParameter& parameter, AdamMoments& moments, const Factors<T>& f, T kept) {
  const std::span<T> w = train::elements<T>(parameter.value);
  const std::span<const T> g = train::elements<T>(parameter.gradient);
  const std::span<T> m = moments.m.values<T>();
  const std::span<T> v = moments.v.values<T>();
  for (std::size_t i = 0; i < w.size(); ++i) {
    m[i] = f.beta1 * m[i] + f.one_minus_beta1 * g[i];
    v[i] = f.beta2 * v[i] + f.one_minus_beta2 * (g[i] * g[i]);
    w[i] = kept * w[i] - f.m_rate * m[i] / (std::sqrt(v[i] * f.v_factor) + f.epsilon);
  }
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
  train::check_parameters("Adam", list);
  for (const TrainedParameter& p : list) {
    const Dims& shape = p.value.shape();
    moments_.push_back({p.name, Tensor(p.value.dtype(), shape), Tensor(p.value.dtype(), shape)});
  }
}

void Adam::step(std::span<const TrainedParameter> list, double learning_rate) {
  train::check_parameters("Adam::step", list);
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
  ++updates_;
  for (std::size_t n = 0; n < list.size(); ++n) {
    const double decay = list[n].value.rank() < 2 ? 0 : options_.weight_decay;
    train::with_real_type(list[n].value.dtype(), [&](auto zero) {
      using T = decltype(zero);
      update<T>(list[n], moments_[n], Factors<T>(options_, learning_rate, updates_),
                static_cast<T>(1 - learning_rate * decay));
    });
  }
}

}  // namespace qkv::app
