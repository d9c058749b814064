// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYOUT_H_
#define QKV_PYTHON_SRC_LAYOUT_H_

#include <qkv/view.h>

#include "errors.h"

namespace qkv::python {

// The memory layout of a call's arrays: [B,H,T,D] (or of lower rank), [B,T,H,D], or [B,T,H*D] with
// the heads side by side.
struct Layout {
  enum class Order { kHeadsFirst, kHeadsThird, kSideBySide };
  Order order = Order::kHeadsFirst;
  Index heads = 1;      // H; used only with heads side by side
  Index key_heads = 1;  // G; used only with heads side by side
  bool packed = false;  // packed sequences: [sum T,..], without a batch axis
  bool batch = true;    // false if no array has an axis before T and H*D
};

// The library's [B,H,T,.] view, without a copy, of an array with `heads` heads in a layout. Throws
// Error for an array that cannot have that layout.
ConstView as_heads_first(const ConstView& view, const Layout& layout, Index heads,
                         const Name& name);
// The library's [B,H,T,.] view of a result whose shape is from in_memory().
View as_heads_first(const View& view, const Layout& layout, Index heads);
// The shape, in a layout, of an array whose shape in the library is `heads_first`.
Dims in_memory(const Dims& heads_first, const Layout& layout);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYOUT_H_
