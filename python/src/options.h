// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPTIONS_H_
#define QKV_PYTHON_SRC_OPTIONS_H_

#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "errors.h"

namespace qkv::python {

// How rank-4 arrays stand in memory: [B,H,T,D] or [B,T,H,D].
enum class Layout { kBhtd, kBthd };

// The inputs and options of a call, and the arrays that hold their memory.
struct CallArguments {
  Inputs inputs;
  Options options;
  Layout layout = Layout::kBhtd;
  std::vector<Array> arrays;  // their owners

  Array& hold(Array array) { return arrays.emplace_back(std::move(array)); }
};

// Calls f(). Errors that show shapes say that they are the library's, where the caller's differ.
template <class F>
auto in_layout(Layout layout, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (layout == Layout::kBhtd) throw;
    throw with_note(error, " (axes as [B,H,T,.])");
  }
}

// Between a [B,T,H,D] array and the library's [B,H,T,D]: the same memory.
ConstView as_heads_first(const ConstView& view, Layout layout);
View as_heads_first(const View& view, Layout layout);

// The tuple `options` has the arguments of qkv.attention from `score` to `layout`, in order (see
// _functions.py). Throws Error.
CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options);

// Roughly how many multiply-adds the call takes, whose results have these shapes.
double work_of(const CallArguments& call, const ResultShapes& shapes);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPTIONS_H_
