// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPTIONS_H_
#define QKV_PYTHON_SRC_OPTIONS_H_

#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "errors.h"

namespace qkv::python {

// How arrays stand in memory: [B,H,T,D] (or of lower rank), [B,T,H,D], or [B,T,H*D] with the heads
// side by side.
struct Layout {
  enum class Order { kHeadsFirst, kHeadsThird, kSideBySide };
  Order order = Order::kHeadsFirst;
  Index heads = 1;      // H, where they are side by side
  Index key_heads = 1;  // G
  bool packed = false;
  bool batch = true;  // false: no array has an axis before T and H*D
};

// The inputs and options of a call, and the arrays that hold their memory.
struct CallArguments {
  Inputs inputs;
  Options options;
  Layout layout;
  std::vector<Array> arrays;  // their owners

  Array& hold(Array array) { return arrays.emplace_back(std::move(array)); }
};

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

// The library's [B,H,T,.] of an array in a layout, with so many heads: the same memory. Throws
// Error for an array that cannot have that layout.
ConstView as_heads_first(const ConstView& view, const Layout& layout, Index heads,
                         const Name& name);
// Likewise of a result made with in_memory().
View as_heads_first(const View& view, const Layout& layout, Index heads);
// The shape in a layout of what the library gives the shape `heads_first`.
Dims in_memory(const Dims& heads_first, const Layout& layout);

// The tuple `options` has the arguments of qkv.attention from `score` to `heads`, in order (see
// _functions.py). Throws Error.
CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options);

// Roughly how many multiply-adds the call takes, whose results have these shapes.
double work_of(const CallArguments& call, const ResultShapes& shapes);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPTIONS_H_
