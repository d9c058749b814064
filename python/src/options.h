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

// The name in params of a QK-norm gain: "norm_q" for "q".
std::string gain_name(const char* side);

// The error of a call, with advice in Python's terms: which option takes arrays of these shapes.
Error with_advice(const Error& error, const CallArguments& call);

// Calls f(). Errors that show shapes note that these are the library's, if the caller's differ.
template <class F>
auto in_layout(const CallArguments& call, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw with_advice(error, call);
  }
}

// The tuple `options` has the values of the options that _core.OPTIONS names. Throws Error.
CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options);

// Roughly the number of multiply-adds of a call whose results have these shapes.
double work_of(const CallArguments& call, const ResultShapes& shapes);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPTIONS_H_
