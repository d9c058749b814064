// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <string>
#include <utility>

namespace qkv::python {
namespace {

// A view of [..,T,H*X] as [..,H,T,X]. [T,H*X] becomes [1,H,T,X], so that H is never taken for B;
// with packed sequences it becomes [T,H,X].
template <class AnyView>
AnyView split_heads(const AnyView& x, Index heads, bool packed) {
  const Index width = x.size(-1) / heads;
  const int rank = x.rank();
  Dims shape, strides;
  const auto add = [&](Index size, Index stride) {
    shape.push_back(size);
    strides.push_back(stride);
  };
  if (packed) {
    add(x.size(-2), x.stride(-2));
    add(heads, width * x.stride(-1));
  } else {
    if (rank == 2) add(1, 0);
    for (int axis = 0; axis < rank - 2; ++axis) add(x.size(axis), x.stride(axis));
    add(heads, width * x.stride(-1));
    add(x.size(-2), x.stride(-2));
  }
  add(width, x.stride(-1));
  return AnyView(x.data(), x.dtype(), shape, strides);
}

template <class AnyView>
AnyView heads_first(const AnyView& view, const Layout& layout, Index heads) {
  if (!view.given()) return view;
  switch (layout.order) {
    case Layout::Order::kHeadsFirst:
      return view;
    case Layout::Order::kHeadsThird:
      return transpose(view, 1, 2);
    case Layout::Order::kSideBySide:
      return split_heads(view, heads, layout.packed);
  }
  return view;
}

}  // namespace

ConstView as_heads_first(const ConstView& view, const Layout& layout, Index heads,
                         const Name& name) {
  if (view.given() && layout.order == Layout::Order::kHeadsThird && view.rank() != 4) {
    throw_value_error(name, "must have rank 4 with layout \"bthd\", got " + qkv::describe(view));
  }
  if (view.given() && layout.order == Layout::Order::kSideBySide) {
    if (view.rank() < 2 || view.rank() >= kMaxRank || (layout.packed && view.rank() != 2)) {
      throw_value_error(name, std::string("must be ") + (layout.packed ? "[T,H*D]" : "[..,T,H*D]") +
                                  " where heads is given, got " + qkv::describe(view));
    }
    if (view.size(-1) % heads != 0) {
      throw_value_error(name, "must have a width that " + std::to_string(heads) +
                                  " heads divide where heads is given, for [..,T,H*D], got " +
                                  qkv::describe(view));
    }
  }
  return heads_first(view, layout, heads);
}

View as_heads_first(const View& view, const Layout& layout, Index heads) {
  return heads_first(view, layout, heads);
}

Dims in_memory(const Dims& heads_first, const Layout& layout) {
  Dims shape = heads_first;
  if (layout.order == Layout::Order::kHeadsThird) std::swap(shape[1], shape[2]);
  if (layout.order != Layout::Order::kSideBySide) return shape;
  const int rank = heads_first.rank();
  const Index rows = heads_first[layout.packed ? 0 : rank - 2];
  const Index width = heads_first[layout.packed ? 1 : rank - 3] * heads_first[rank - 1];
  Dims merged;
  for (int axis = 0; !layout.packed && layout.batch && axis < rank - 3; ++axis) {
    merged.push_back(heads_first[axis]);
  }
  merged.push_back(rows);
  merged.push_back(width);
  return merged;
}

}  // namespace qkv::python
