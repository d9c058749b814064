// SPDX-License-Identifier: Apache-2.0
#include "attention/validate/shapes.h"

#include <cstdint>
#include <limits>

#include "attention/validate/resolve.h"
#include "core/integers.h"
#include "core/message.h"
#include "core/shapes.h"

namespace qkv {

ResultShapes result_shapes(const Inputs& inputs) {
  core::ResolvedProblem p;
  p.function = "attention";
  attn::resolve_inputs(inputs, attn::Complex::kRefused, p);
  ResultShapes shapes;
  if (p.packed()) {
    if (p.v.given()) shapes.out = {p.q_rows, p.H, p.E};
    shapes.rows = {p.H, p.q_rows};
    shapes.keys = {p.H, p.k_rows};
    return shapes;
  }
  if (p.v.given()) shapes.out = attn::result_shape(p, {p.Tq, p.E});
  shapes.rows = attn::result_shape(p, Dims(p.Tq));
  if (p.paged()) return shapes;
  shapes.keys = attn::result_shape(p, Dims(p.Tk));
  shapes.matrix = attn::result_shape(p, {p.Tq, p.Tk});
  return shapes;
}

}  // namespace qkv

namespace qkv::attn {

using core::text;

Dims result_shape(const Problem& p, const Dims& tail) {
  Dims shape = p.batch;
  if (p.head_axis) shape.push_back(p.H);
  for (Index size : tail) shape.push_back(size);
  return shape;
}

std::string result_letters(const Problem& p, std::string_view tail) {
  std::string letters = "[";
  const int batch = p.batch.rank();
  for (int axis = 0; axis < batch; ++axis) {
    letters += batch == 1 ? "B," : text("B", axis + 1, ",");
  }
  if (p.head_axis) letters += "H,";
  return letters + std::string(tail) + "]";
}

namespace {

// Returns the complete letters of a shape: `letters` itself if it starts with a bracket, else those
// of a result with this tail.
std::string whole(const Problem& p, std::string_view letters) {
  return letters.starts_with('[') ? std::string(letters) : result_letters(p, letters);
}

}  // namespace

Dims broadcast_strides(const Problem& p, std::string_view argument, const ConstView& view,
                       const Dims& target, std::string_view letters) {
  const auto common = core::broadcast_shapes(view.shape(), target);
  if (!common || !(*common == target)) {
    throw Error(p.function, argument,
                text("must broadcast to ", whole(p, letters), " = ", to_string(target), ", got ",
                     describe(view)));
  }
  Dims strides;
  const int missing = target.rank() - view.rank();
  for (int axis = 0; axis < target.rank(); ++axis) {
    if (axis < missing) {
      strides.push_back(0);
      continue;
    }
    const Index size = view.size(axis - missing);
    strides.push_back(size == 1 ? 0 : view.stride(axis - missing));
  }
  return strides;
}

Index width_of(const Problem& p, std::string_view argument, const ConstView& view) {
  const Index size = view.size(-1);
  const auto width = core::checked_multiply(
      size, view.dtype() == DType::kQ8 ? Index{BlockQ8::kNumbers} : Index{1});
  if (!width) {
    throw Error(p.function, argument,
                text("must have fewer than 2^63 channels, got ", describe(view)));
  }
  if (size < 1) {
    throw Error(p.function, argument, text("must have a width of 1 or more, got ", describe(view)));
  }
  return *width;
}

Operand in_numbers(Operand x) {
  if (x.dtype != DType::kQ8) return x;
  // A stride that is used stays below 2^63. The stride of an axis of size 1 is not used and may be
  // any number, so the product is computed without signed overflow.
  const auto widen = [](Index& stride) {
    constexpr auto kNumbers = static_cast<std::uint64_t>(BlockQ8::kNumbers);
    stride = static_cast<Index>(static_cast<std::uint64_t>(stride) * kNumbers);
  };
  for (int axis = 0; axis < x.batch_strides.rank(); ++axis) widen(x.batch_strides[axis]);
  for (Index* stride : {&x.head_stride, &x.row_stride, &x.entry_stride, &x.page_stride}) {
    widen(*stride);
  }
  x.col_stride = 1;
  return x;
}

void expect_shape(const Problem& p, std::string_view argument, const ConstView& view,
                  const Dims& expected, std::string_view letters) {
  if (view.shape() == expected) return;
  throw Error(p.function, argument,
              text("must have the shape ", whole(p, letters), " = ", to_string(expected), ", got ",
                   describe(view)));
}

void expect_dtype(const Problem& p, std::string_view argument, const ConstView& view,
                  DType expected, std::string_view model_name, DType model) {
  if (view.dtype() == expected) return;
  throw Error(p.function, argument,
              text("must be ", name_of(expected), " where ", model_name, " is ", name_of(model),
                   ", got ", describe(view)),
              ErrorKind::kType);
}

void expect_real(const Problem& p, std::string_view argument, const ConstView& view) {
  if (view.dtype() == p.dtype || view.dtype() == p.accumulator) return;
  throw Error(p.function, argument,
              text("must be ", name_of(p.dtype),
                   p.dtype == p.accumulator ? "" : text(" or ", name_of(p.accumulator)),
                   " where q is ", name_of(p.dtype), ", got ", describe(view)),
              ErrorKind::kType);
}

void expect_integer(const Problem& p, std::string_view argument, const ConstView& view,
                    bool or_bool) {
  if (is_integer(view.dtype()) || (or_bool && view.dtype() == DType::kBool)) return;
  throw Error(p.function, argument,
              text("must be ", or_bool ? "bool or " : "", "an integer type, got ", describe(view)),
              ErrorKind::kType);
}

void expect_both(const Problem& p, const char* a_name, const ConstView& a, const char* b_name,
                 const ConstView& b, const char* who) {
  const auto missing = [&](const char* name, const char* other) {
    throw Error(p.function, name, text("is absent but ", other, " is given; ", who, " need both"));
  };
  if (!a.given()) missing(a_name, b_name);
  if (!b.given()) missing(b_name, a_name);
}

void refuse_on_device(const Problem& p, std::string_view argument) {
  throw Error(p.function, argument, "is not available for arrays in device memory");
}

Index integer_at(const ConstView& view, Index offset) {
  if (view.dtype() != DType::kUInt64) {
    return core::load<Index>(view.dtype(), view.data(), offset);
  }
  const std::uint64_t value = static_cast<const std::uint64_t*>(view.data())[offset];
  constexpr Index kLargest = std::numeric_limits<Index>::max();
  return value > static_cast<std::uint64_t>(kLargest) ? kLargest : static_cast<Index>(value);
}

std::string integer_text(const ConstView& view, Index offset) {
  if (view.dtype() != DType::kUInt64) return text(integer_at(view, offset));
  return text(static_cast<const std::uint64_t*>(view.data())[offset]);
}

Operand parameter_operand(const Problem& p, std::string_view name, const ConstView& x,
                          const Dims& sizes, const char* letters, Index heads,
                          const char* head_letter) {
  if (!x.given()) throw Error(p.function, name, "is absent but the score needs it");
  expect_real(p, name, x);
  const int own = sizes.rank();
  bool fits = x.rank() == own || (x.rank() == own + 1 && x.size(0) == heads);
  for (int axis = 1; fits && axis <= own; ++axis) {
    const Index wanted = sizes[own - axis];
    fits = wanted < 0 || x.size(-axis) == wanted;
  }
  if (!fits) {
    std::string wanted;
    for (int axis = 0; axis < own; ++axis) {
      wanted += axis == 0 ? "" : ",";
      wanted += sizes[axis] < 0 ? std::string("any") : text(sizes[axis]);
    }
    throw Error(p.function, name,
                text("must have the shape [", letters, "] = [", wanted, "] or [", head_letter, ",",
                     letters, "] = [", heads, ",", wanted, "], got ", describe(x)));
  }
  const Index head = x.rank() == own ? 0 : x.stride(0);
  return plain_operand(p, x, head, own == 2 ? x.stride(-2) : 0, x.stride(-1));
}

}  // namespace qkv::attn
