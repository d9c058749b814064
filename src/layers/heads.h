// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_HEADS_H_
#define QKV_LAYERS_HEADS_H_

#include <qkv/view.h>

namespace qkv::layers {

// Returns a view [..,H,T,D] of [..,T,H*D], and [1,H,T,D] of [T,H*D], so that the head axis is never
// mistaken for a batch axis. Only the last axis is split, so no copy is needed, and writing to the
// view writes to x.
template <class AnyView>
AnyView split_heads(const AnyView& x, Index heads) {
  const int rank = x.rank();
  const Index width = x.size(-1) / heads;
  Dims shape;
  Dims strides;
  const auto add = [&](Index size, Index stride) {
    shape.push_back(size);
    strides.push_back(stride);
  };
  if (rank == 2) add(1, 0);
  for (int axis = 0; axis < rank - 2; ++axis) add(x.size(axis), x.stride(axis));
  add(heads, width * x.stride(-1));
  add(x.size(-2), x.stride(-2));
  add(width, x.stride(-1));
  return AnyView(x.data(), x.dtype(), shape, strides);
}

}  // namespace qkv::layers

#endif  // QKV_LAYERS_HEADS_H_
