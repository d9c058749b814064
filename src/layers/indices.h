// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_INDICES_H_
#define QKV_LAYERS_INDICES_H_

#include <optional>
#include <string_view>

#include <qkv/tensor.h>

#include "layers/checks.h"

namespace qkv::layers {

// The valid values of an array of indices: 0..count-1, and `other` if given.
struct IndexRange {
  Index count = 0;
  std::optional<Index> other{};
};

// Checks an array of int32 or int64, of any shape and strides, and copies its values to `copied`
// (int64, C order), so that later changes to the array do not affect a backward pass. Throws Error
// with the first value outside the range and its position; `copied` is then unspecified.
void copy_indices(std::string_view function, const NamedView& indices, const IndexRange& range,
                  Tensor& copied);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_INDICES_H_
