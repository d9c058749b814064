// SPDX-License-Identifier: Apache-2.0
#include "layers/indices.h"

#include <cstdint>

#include <qkv/error.h>

#include "core/message.h"
#include "core/shapes.h"
#include "layers/attend.h"

namespace qkv::layers {
namespace {

using core::text;

[[noreturn]] void refuse(std::string_view function, const NamedView& indices,
                         const IndexRange& range, Index value, const Dims& position) {
  const std::string besides = range.other ? text(" or be ", *range.other) : "";
  throw Error(function, indices.name,
              text("must lie in 0..", range.count - 1, besides, ", got ", value, " at ",
                   to_string(position)));
}

template <class Stored>
void copy_valid(std::string_view function, const NamedView& indices, const IndexRange& range,
                Tensor& copied) {
  const Stored* from = indices.view.as<Stored>();
  std::int64_t* to = copied.values<std::int64_t>().data();
  core::for_each_offset<1>(indices.view.shape(), {indices.view.strides()},
                           [&](const auto& offset, const Dims& position) {
                             const Index value = from[offset[0]];
                             if ((value < 0 || value >= range.count) && value != range.other) {
                               refuse(function, indices, range, value, position);
                             }
                             *to++ = value;
                           });
}

}  // namespace

void copy_indices(std::string_view function, const NamedView& indices, const IndexRange& range,
                  Tensor& copied) {
  const ConstView& view = indices.view;
  if (!view.given()) throw Error(function, indices.name, "must be given");
  if (view.dtype() != DType::kInt32 && view.dtype() != DType::kInt64) {
    throw Error(function, indices.name, text("must be int32 or int64, got ", describe(view)),
                ErrorKind::kType);
  }
  resize(copied, DType::kInt64, view.shape());
  if (view.dtype() == DType::kInt32) {
    copy_valid<std::int32_t>(function, indices, range, copied);
  } else {
    copy_valid<std::int64_t>(function, indices, range, copied);
  }
}

}  // namespace qkv::layers
