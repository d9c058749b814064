// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_BACKWARD_H_
#define QKV_PYTHON_SRC_BACKWARD_H_

#include <functional>

#include <qkv/attention.h>

#include "options.h"

namespace qkv::python {

// A backward pass under its Python name. With separate keys the gradients of k and Wk are not among
// its results.
struct BackwardFunction {
  const char* name;
  bool keys_apart = false;
};

using RunBackward =
    std::function<void(double work, const Saved&, const OutputGradients&, const InputGradients&)>;

// Makes the gradients of a call, of the type of `like`, has run() fill them and returns them to
// Python. outputs: (dout, out, lse, dlse, dweights, rows, wanted, add_to); the result: (dq, dk, dv,
// dbias, dparams, dalibi_slopes, dsinks), None for those not wanted. The orders are those of
// _functions.py.
nb::tuple differentiate(const BackwardFunction& of, CallArguments& call, nb::handle like,
                        const nb::tuple& outputs, const RunBackward& run);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_BACKWARD_H_
