// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_ADAM_H_
#define QKV_TRANSLATOR_OPTIMISER_ADAM_H_

#include <span>
#include <string>
#include <vector>

#include <qkv/context.h>
#include <qkv/tensor.h>

#include "translator/optimiser/gradients.h"

namespace qkv::app {

struct AdamOptions {
  double beta1 = 0.9;     // decay of the mean of gradients, in [0,1)
  double beta2 = 0.999;   // decay of the mean of squared gradients, in [0,1)
  double epsilon = 1e-8;  // added to the denominator, in [1e-30,1)
  // The decay rate of AdamW (Loshchilov, Hutter 2019, algorithm 2); 0 is Adam. The decay w <- w -
  // rate decay w is decoupled from the gradient. It applies to parameters with two or more axes;
  // biases, and vectors such as the v of additive attention, do not decay.
  double weight_decay = 0;
};

// The values that differ from one update to another.
struct AdamStep {
  double learning_rate = 0;
  double gradient_factor = 1;  // multiplies gradients, to clip them; those in memory do not change
};

// Adam's state for one parameter.
struct AdamMoments {
  std::string name{};  // name of the parameter
  Tensor m{};          // running mean of the gradient
  Tensor v{};          // running mean of the squared gradient
};

// Adam (Kingma, Ba 2015, algorithm 1). With the gradient g and the update number t = 1, 2, ... it
// computes
//   m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2
//   w <- w - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
// Each element of a parameter is computed by itself, in the parameter's type, so that results are
// bit-identical for any number of threads. The moments and the update count are the complete state:
// after saving and restoring them, training continues bit-identically.
class Adam {
 public:
  // Allocates the moments of these parameters. Throws Error for options out of range.
  Adam(std::span<const TrainedParameter> list, const AdamOptions& options);

  // Takes one update with the given gradients. The list must have the names, shapes and dtypes of
  // the constructor's list. Throws Error before anything changes.
  void step(std::span<const TrainedParameter> list, double learning_rate) {
    step(list, {.learning_rate = learning_rate}, {});
  }
  // Takes one update on the executor. Gradients are multiplied by step.gradient_factor while they
  // are read: the factor and each product are rounded to the parameter's type.
  void step(std::span<const TrainedParameter> list, const AdamStep& step, const Executor& executor);

  Index updates() const noexcept { return updates_; }
  void set_updates(Index updates) noexcept { updates_ = updates; }
  std::span<AdamMoments> moments() noexcept { return moments_; }
  std::span<const AdamMoments> moments() const noexcept { return moments_; }

 private:
  AdamOptions options_;
  std::vector<AdamMoments> moments_;
  Index updates_ = 0;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_ADAM_H_
