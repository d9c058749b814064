// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_BACKWARD_H_
#define QKV_PYTHON_SRC_BACKWARD_H_

#include <functional>

#include <qkv/attention.h>

#include "options.h"
#include "results.h"

namespace qkv::python {

// The Python name of a backward pass. With `keys_apart` its results do not have the gradients of k
// and Wk, which AdditiveMemory.key_gradients() returns.
struct BackwardFunction {
  const char* name;
  bool keys_apart = false;
};

using RunBackward =
    std::function<void(double work, const Saved&, const OutputGradients&, const InputGradients&)>;

// Makes arrays for the gradients of a call by `maker`, and calls run() to fill them. `outputs` is
// (dout, out, lse, dlse, dweights, rows, wanted, add_to). Returns the gradients that
// _core.GRADIENTS names, in that order, with None for those not requested.
nb::tuple differentiate(const BackwardFunction& of, CallArguments& call, const ResultMaker& maker,
                        const nb::tuple& outputs, const RunBackward& run);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_BACKWARD_H_
