// SPDX-License-Identifier: Apache-2.0
#include "layers/checks.h"

#include <optional>

#include <qkv/error.h>

#include "core/integers.h"
#include "core/message.h"
#include "core/overlap.h"

namespace qkv::layers {
namespace {

using core::text;

void check_given(std::string_view function, const NamedView& array, DType dtype) {
  if (!array.view.given()) throw Error(function, array.name, "must be given");
  if (array.view.dtype() != dtype) {
    throw Error(function, array.name,
                text("must be ", name_of(dtype), " as the layer is, got ", describe(array.view)),
                ErrorKind::kType);
  }
}

}  // namespace

void check_size(std::string_view function, std::string_view argument, Index size) {
  if (size < 1) throw Error(function, argument, text("must be at least 1, got ", size));
}

void check_tensor(std::string_view function, std::string_view sizes, DType dtype,
                  const Dims& shape) {
  auto bytes = std::optional(static_cast<Index>(size_of(dtype)));
  for (const Index size : shape) {
    bytes = core::checked_multiply(*bytes, size);
    if (bytes) continue;
    throw Error(function, sizes,
                text("must be smaller: parameters may take at most 2^63 - 1 bytes, got ",
                     name_of(dtype), " ", to_string(shape)));
  }
}

double checked_dropout(std::string_view function, double p) {
  // The condition is written so that NaN fails.
  if (!(p >= 0 && p < 1)) throw Error(function, "dropout", text("must be in [0,1), got ", p));
  return p;
}

void check_dtype(std::string_view function, DType dtype) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
    throw Error(function, "dtype", text("must be float32 or float64, got ", name_of(dtype)),
                ErrorKind::kType);
  }
}

void check_rows(std::string_view function, const NamedView& array, DType dtype, Index width,
                std::string_view width_name) {
  check_given(function, array, dtype);
  const int rank = array.view.rank();
  // One axis is reserved for the heads.
  if (rank < 2 || rank >= kMaxRank) {
    throw Error(function, array.name,
                text("must have rank 2 to ", kMaxRank - 1, ", got ", describe(array.view)));
  }
  if (array.view.size(-1) != width) {
    throw Error(function, array.name,
                text("must have ", width, " channels, the layer's ", width_name, ", got ",
                     describe(array.view)));
  }
}

void check_channels(std::string_view function, const NamedView& array, Index width,
                    std::string_view width_name) {
  if (!array.view.given() || array.view.rank() == 0 || array.view.size(-1) == width) return;
  throw Error(
      function, array.name,
      text("must have ", width, " channels (", width_name, "), got ", describe(array.view)));
}

void check_computed_in(std::string_view function, const NamedView& array, DType dtype) {
  const DType given = array.view.dtype();
  if (!array.view.given() || !is_real(given) || accumulator_of(given) == dtype) return;
  const auto* const wanted = dtype == DType::kFloat64 ? "float64" : "float32, bfloat16 or float16";
  throw Error(function, array.name,
              text("must be ", wanted, ", as the layer is ", name_of(dtype), ", got ",
                   describe(array.view)),
              ErrorKind::kType);
}

void check_float(std::string_view function, const NamedView& array) {
  if (!array.view.given()) throw Error(function, array.name, "must be given");
  if (array.view.dtype() != DType::kFloat32 && array.view.dtype() != DType::kFloat64) {
    throw Error(function, array.name,
                text("must be float32 or float64, got ", describe(array.view)), ErrorKind::kType);
  }
}

void check_same(std::string_view function, const NamedView& array, DType dtype, const Dims& shape) {
  check_given(function, array, dtype);
  if (!(array.view.shape() == shape)) {
    throw Error(function, array.name,
                text("must have the shape ", to_string(shape), ", got ", describe(array.view)));
  }
}

void check_apart(std::string_view function, const NamedView& target,
                 std::initializer_list<NamedView> others) {
  if (core::self_overlaps(target.view)) {
    throw Error(function, target.name,
                text("must not overlap itself, got ", describe(target.view), " with strides ",
                     to_string(target.view.strides())));
  }
  for (const NamedView& other : others) {
    if (core::may_overlap(target.view, other.view)) {
      throw Error(function, target.name, text("must not overlap ", other.name));
    }
  }
}

void check_apart_or_same(std::string_view function, const NamedView& target,
                         const NamedView& other) {
  const ConstView& a = target.view;
  const ConstView& b = other.view;
  const bool same = a.data() == b.data() && a.dtype() == b.dtype() && a.shape() == b.shape() &&
                    a.strides() == b.strides();
  check_apart(function, target, {});
  if (!same && core::may_overlap(a, b)) {
    throw Error(function, target.name,
                text("must not overlap ", other.name, ", unless it is ", other.name,
                     " itself, with the same strides"));
  }
}

void check_outputs(std::string_view function, const Outputs& outputs,
                   std::initializer_list<NamedView> inputs) {
  const NamedView out{"out", outputs.out};
  check_apart(function, out, inputs);
  for_each_buffer(outputs, [&](std::string_view name, const View& buffer) {
    if (name == out.name) return;
    check_apart(function, {name, buffer}, {out});
    check_apart(function, {name, buffer}, inputs);
  });
}

}  // namespace qkv::layers
