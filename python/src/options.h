// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPTIONS_H_
#define QKV_PYTHON_SRC_OPTIONS_H_

#include <string>
#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "errors.h"
#include "layout.h"

namespace qkv::python {

// The inputs and options of a call, and the arrays that hold their memory.
struct CallArguments {
  Inputs inputs;
  Options options;
  Layout layout;
  std::vector<Array> arrays;  // their owners

  Array& hold(Array array) { return arrays.emplace_back(std::move(array)); }
};

// What params calls a gain of the QK-norm: "norm_q" of "q".
std::string gain_name(const char* side);

// The error of a call with what Python has for it: which option takes arrays of these shapes.
Error with_advice(const Error& error, const CallArguments& call);

// Calls f(). Errors that show shapes say that they are the library's, where the caller's differ.
template <class F>
auto in_layout(const CallArguments& call, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw with_advice(error, call);
  }
}

// The tuple `options` has the arguments of qkv.attention from `score` to `heads`, in order (see
// _functions.py). Throws Error.
CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options);

// Roughly how many multiply-adds the call takes, whose results have these shapes.
double work_of(const CallArguments& call, const ResultShapes& shapes);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPTIONS_H_
