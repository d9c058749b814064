// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYOUT_H_
#define QKV_PYTHON_SRC_LAYOUT_H_

#include <qkv/view.h>

#include "errors.h"

namespace qkv::python {

// The memory layout of arrays: [B,H,T,D] (or of lower rank), [B,T,H,D], or [B,T,H*D] with the heads
// side by side.
struct Layout {
  enum class Order { kHeadsFirst, kHeadsThird, kSideBySide };
  Order order = Order::kHeadsFirst;
  Index heads = 1;      // H, if side by side
  Index key_heads = 1;  // G
  bool packed = false;
  bool batch = true;  // false: no array has an axis before T and H*D
};

// The library's [B,H,T,.] view of an array in a layout with so many heads, without a copy. Throws
// Error for an array that cannot have that layout.
ConstView as_heads_first(const ConstView& view, const Layout& layout, Index heads,
                         const Name& name);
// The same for a result made with in_memory().
View as_heads_first(const View& view, const Layout& layout, Index heads);
// The shape, in a layout, of an array that has the shape `heads_first` in the library.
Dims in_memory(const Dims& heads_first, const Layout& layout);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYOUT_H_
