// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPTIONS_H_
#define QKV_PYTHON_SRC_OPTIONS_H_

#include <memory>
#include <string>
#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "errors.h"
#include "expressions.h"
#include "layout.h"

namespace qkv::python {

// The inputs and options of a call, and the arrays that own their memory.
struct CallArguments {
  // Whether all arrays are in the memory of a GPU, whose numbers the host does not read.
  bool on_device = false;
  Inputs inputs;
  Options options;
  Layout layout;
  std::vector<Array> arrays;  // q, k and v first, then arrays of options
  std::vector<std::shared_ptr<const CapturedInput>> captured;  // the arrays of score_mod

  Array& hold(Array array) { return arrays.emplace_back(std::move(array)); }
};

// The key of a QK-norm gain in `params`: "norm_q" for the side "q".
std::string gain_name(const char* side);

// Returns an error of a call with advice appended: the Python option that takes arrays of these
// shapes, and a note if the shapes in the message are the library's and not the caller's.
Error with_advice(const Error& error, const CallArguments& call);

// Returns f(); its errors are thrown as with_advice() gives them.
template <class F>
auto in_layout(const CallArguments& call, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw with_advice(error, call);
  }
}

// Reads the arguments of a call. The tuple `options` has the values of the options that
// _core.OPTIONS names, in that order. With `on_device` arrays are as array_on_device() takes them.
// Throws Error.
CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options, bool on_device = false);

// An estimate of the number of multiply-adds of a call whose results have these shapes.
double work_of(const CallArguments& call, const ResultShapes& shapes);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPTIONS_H_
