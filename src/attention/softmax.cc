// SPDX-License-Identifier: Apache-2.0
// The doors of softmax, masked_softmax and batch_dot: all checks, then the reference's loops.
#include "reference/softmax.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <qkv/error.h>
#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "core/overlap.h"
#include "core/shapes.h"
#include "core/stop.h"
#include "core/storage.h"
#include "reference/matmul.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

// ---- checks shared by the three -------------------------------------------------------------

void require_given(std::string_view function, std::string_view argument, const ConstView& view) {
  if (!view.given()) throw Error(function, argument, "is absent");
}

void require_real(std::string_view function, std::string_view argument, const ConstView& view) {
  if (is_real(view.dtype())) return;
  throw Error(function, argument,
              "must be float64, float32, bfloat16 or float16, got " + describe(view),
              ErrorKind::kType);
}

void require_dtype(std::string_view function, std::string_view argument, const ConstView& view,
                   std::string_view model_name, const ConstView& model) {
  if (view.dtype() == model.dtype()) return;
  throw Error(function, argument,
              "must have the dtype of " + std::string(model_name) + ", got " + describe(view) +
                  " for " + describe(model),
              ErrorKind::kType);
}

void require_shape(std::string_view function, const ConstView& out, const Dims& shape) {
  if (out.shape() == shape) return;
  throw Error(function, "out",
              "must have the shape " + to_string(shape) + ", got " + describe(out));
}

void require_apart(std::string_view function, const ConstView& out, std::string_view input_name,
                   const ConstView& input) {
  if (!core::may_overlap(out, input)) return;
  throw Error(function, "out",
              "must not share memory with " + std::string(input_name) + " (out " + describe(out) +
                  ", " + std::string(input_name) + " " + describe(input) + ")");
}

void require_own_places(std::string_view function, const ConstView& out) {
  if (!core::self_overlaps(out)) return;
  throw Error(function, "out",
              "must have a place of its own for each element, got " + describe(out) +
                  " with strides " + to_string(out.strides()));
}

// Calls f with a null pointer of the storage type and one of the type its sums are held in.
template <class F>
void visit_real(DType dtype, const F& f) {
  core::visit_dtype(dtype, [&]<class Stored>(Stored*) {
    if constexpr (is_real(dtype_of<Stored>)) {
      using T = std::conditional_t<std::is_same_v<Stored, double>, double, float>;
      f(static_cast<Stored*>(nullptr), static_cast<T*>(nullptr));
    }
  });
}

Dims leading(const Dims& dims, int dropped) {
  return core::sub_dims(dims, 0, dims.rank() - dropped);
}

// ---- softmax --------------------------------------------------------------------------------

void check_rows(std::string_view function, const ConstView& x, const ConstView& out) {
  require_given(function, "x", x);
  require_given(function, "out", out);
  require_real(function, "x", x);
  require_dtype(function, "out", out, "x", x);
}

// f(0) .. f(count - 1); `stop` is read now and then.
template <class F>
void for_each_index(Index count, const core::StopPoint& stop, const F& f) {
  for (Index begin = 0; begin < count; begin += core::kStepsBetweenStops) {
    stop();
    const Index end = std::min(count, begin + core::kStepsBetweenStops);
    for (Index j = begin; j < end; ++j) f(j);
  }
}

// One row of N numbers, the first `live` of which take part, as attention's own softmax sees it.
template <class T>
struct SoftmaxRow {
  explicit SoftmaxRow(Index count)
      : s(static_cast<std::size_t>(count)), live(static_cast<std::size_t>(count)) {}

  template <class Stored>
  void load(const Stored* x, Index stride, Index length, const core::StopPoint& stop) {
    for_each_index(static_cast<Index>(s.size()), stop, [&](Index j) {
      s[static_cast<std::size_t>(j)] = core::to_accumulator<T>(x[j * stride]);
      live[static_cast<std::size_t>(j)] = j < length;
    });
  }
  reference::Scores<T> scores() const {
    return {s.data(), live.data(), static_cast<Index>(s.size())};
  }

  std::vector<T> s;
  std::vector<std::uint8_t> live;
};

// x [..,N]; lengths absent or of x's leading shape, in 0..N; everything checked.
void softmax_rows(const ConstView& x, const ConstView& lengths, const View& out,
                  const core::StopPoint& stop) {
  if (x.element_count() == 0) return;
  const Index count = x.size(-1);
  const Dims rows = leading(x.shape(), 1);
  Dims length_strides = lengths.strides();
  while (length_strides.rank() < rows.rank()) length_strides.push_back(0);  // absent
  visit_real(x.dtype(), [&]<class Stored, class T>(Stored*, T*) {
    const Stored* from = x.as<Stored>();
    Stored* to = out.as<Stored>();
    SoftmaxRow<T> row(count);
    core::for_each_offset<3>(
        rows, {leading(x.strides(), 1), leading(out.strides(), 1), length_strides},
        [&](const auto& offset, const Dims&) {
          const Index length = lengths.given()
                                   ? core::load<Index>(lengths.dtype(), lengths.data(), offset[2])
                                   : count;
          row.load(from + offset[0], x.stride(-1), length, stop);
          const reference::Softmax<T> state = reference::softmax_row(row.scores(), {}, stop);
          for_each_index(count, stop, [&](Index j) {
            to[offset[1] + j * out.stride(-1)] =
                core::from_accumulator<Stored>(reference::weight(row.scores(), state, j));
          });
        });
  });
}

// ---- lengths --------------------------------------------------------------------------------

template <class Integer>
[[noreturn]] void refuse_length(Integer length, const Dims& index, const ConstView& x) {
  std::string place = "batch entry " + std::to_string(index[0]);
  if (index.rank() > 1) place += ", row " + std::to_string(index[1]);
  throw Error("masked_softmax", "lengths",
              "must be in 0 to N = " + std::to_string(x.size(-1)) + ", got " +
                  std::to_string(length) + " for " + place + " (x " + describe(x) + ")");
}

void check_lengths(const ConstView& x, const ConstView& lengths) {
  if (!is_integer(lengths.dtype())) {
    throw Error("masked_softmax", "lengths", "must be integers, got " + describe(lengths),
                ErrorKind::kType);
  }
  const Dims rows = leading(x.shape(), 1);
  const Dims batch = core::sub_dims(rows, 0, 1);
  if (!(lengths.shape() == batch) && !(lengths.shape() == rows)) {
    const std::string either = rows.rank() > 1 ? " or " + to_string(rows) : "";
    throw Error("masked_softmax", "lengths",
                "must have the shape " + to_string(batch) + either + ", got " + describe(lengths) +
                    " (x " + describe(x) + ")");
  }
  core::visit_dtype(lengths.dtype(), [&]<class Stored>(Stored*) {
    if constexpr (is_integer(dtype_of<Stored>)) {
      const Stored* values = lengths.as<Stored>();
      core::for_each_offset<1>(
          lengths.shape(), {lengths.strides()}, [&](const auto& offset, const Dims& index) {
            const Stored length = values[offset[0]];
            if (std::cmp_less(length, 0) || std::cmp_greater(length, x.size(-1))) {
              refuse_length(length, index, x);
            }
          });
    }
  });
}

// lengths [B] or [B,T] as one for each row of x [B,T,N] or [B,N].
ConstView length_of_rows(const ConstView& x, const ConstView& lengths) {
  const Dims rows = leading(x.shape(), 1);
  if (lengths.rank() == rows.rank()) return lengths;
  return {lengths.data(), lengths.dtype(), rows, Dims(lengths.stride(0), 0)};
}

// ---- batch_dot ------------------------------------------------------------------------------

void check_factors(const ConstView& a, const ConstView& b, const ConstView& out) {
  const std::array<std::pair<std::string_view, const ConstView*>, 3> arrays{
      {{"a", &a}, {"b", &b}, {"out", &out}}};
  for (const auto& [name, array] : arrays) require_given("batch_dot", name, *array);
  for (const auto& [name, array] : arrays) {
    if (array->rank() >= 2) continue;
    throw Error("batch_dot", name, "must have at least two axes, got " + describe(*array));
  }
  require_real("batch_dot", "a", a);
  require_dtype("batch_dot", "b", b, "a", a);
  require_dtype("batch_dot", "out", out, "a", a);
}

// a [..,N,L] and b [..,L,M] (transposed already); returns the leading axes of out.
Dims check_product(const ConstView& a, const ConstView& b, const ConstView& out) {
  const std::string came = " (after transposing: a " + describe(a) + ", b " + describe(b) + ")";
  if (a.size(-1) != b.size(-2)) {
    throw Error("batch_dot", "b",
                "has L = " + std::to_string(b.size(-2)) +
                    " but a has L = " + std::to_string(a.size(-1)) + came);
  }
  const auto lead = core::broadcast_shapes(leading(a.shape(), 2), leading(b.shape(), 2));
  if (!lead) {
    throw Error("batch_dot", "b", "has leading axes that do not broadcast with those of a" + came);
  }
  Dims shape = *lead;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  require_shape("batch_dot", out, shape);
  return *lead;
}

// The view with its leading axes broadcast; the last two stay.
ConstView spread(const ConstView& view, const Dims& lead) {
  Dims shape = lead;
  shape.push_back(view.size(-2));
  shape.push_back(view.size(-1));
  return broadcast_to(view, shape);
}

// The matrix at an offset; without elements it has no place (the pointer may be null).
template <class Stored, class AnyView>
reference::Matrix<Stored> matrix_at(const AnyView& view, Index offset) {
  if (view.element_count() == 0) return {nullptr, 0, 0};
  return {view.template as<std::remove_const_t<Stored>>() + offset, view.stride(-2),
          view.stride(-1)};
}

// ---- the three, stopped by `stop` ------------------------------------------------------------

void softmax_until(const core::StopPoint& stop, const ConstView& x, const View& out) {
  check_rows("softmax", x, out);
  if (x.rank() < 1) throw Error("softmax", "x", "must have at least one axis, got " + describe(x));
  require_shape("softmax", out, x.shape());
  require_apart("softmax", out, "x", x);
  require_own_places("softmax", out);
  softmax_rows(x, {}, out, stop);
}

void masked_softmax_until(const core::StopPoint& stop, const ConstView& x, const ConstView& lengths,
                          const View& out) {
  check_rows("masked_softmax", x, out);
  if (x.rank() != 2 && x.rank() != 3) {
    throw Error("masked_softmax", "x", "must be [B,T,N] or [B,N], got " + describe(x));
  }
  require_shape("masked_softmax", out, x.shape());
  if (lengths.given()) check_lengths(x, lengths);
  require_apart("masked_softmax", out, "x", x);
  require_apart("masked_softmax", out, "lengths", lengths);
  require_own_places("masked_softmax", out);
  softmax_rows(x, lengths.given() ? length_of_rows(x, lengths) : lengths, out, stop);
}

void batch_dot_until(const core::StopPoint& stop, const ConstView& a, const ConstView& b,
                     const View& out, Transpose transpose_a, Transpose transpose_b) {
  check_factors(a, b, out);
  const ConstView left = transpose_a == Transpose::kYes ? transpose(a, -2, -1) : a;
  const ConstView right = transpose_b == Transpose::kYes ? transpose(b, -2, -1) : b;
  const Dims lead = check_product(left, right, out);
  require_apart("batch_dot", out, "a", a);
  require_apart("batch_dot", out, "b", b);
  require_own_places("batch_dot", out);

  if (out.element_count() == 0) return;
  const ConstView wide_left = spread(left, lead);
  const ConstView wide_right = spread(right, lead);
  visit_real(a.dtype(), [&]<class Stored, class T>(Stored*, T*) {
    core::for_each_offset<3>(lead,
                             {leading(wide_left.strides(), 2), leading(wide_right.strides(), 2),
                              leading(out.strides(), 2)},
                             [&](const auto& offset, const Dims&) {
                               reference::matmul<T, Stored>(
                                   left.size(-2), right.size(-1), left.size(-1),
                                   matrix_at<const Stored>(wide_left, offset[0]),
                                   matrix_at<const Stored>(wide_right, offset[1]),
                                   matrix_at<Stored>(out, offset[2]), stop);
                             });
  });
}

}  // namespace

void softmax(const ConstView& x, const View& out) { softmax_until({}, x, out); }
void softmax(const ConstView& x, const View& out, Context& context) {
  const runtime::Call call(context, "softmax", 0, 0);
  softmax_until(call.stop_point(), x, out);
}

void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out) {
  masked_softmax_until({}, x, lengths, out);
}
void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out,
                    Context& context) {
  const runtime::Call call(context, "masked_softmax", 0, 0);
  masked_softmax_until(call.stop_point(), x, lengths, out);
}

void batch_dot(const ConstView& a, const ConstView& b, const View& out, Transpose transpose_a,
               Transpose transpose_b) {
  batch_dot_until({}, a, b, out, transpose_a, transpose_b);
}
void batch_dot(const ConstView& a, const ConstView& b, const View& out, Transpose transpose_a,
               Transpose transpose_b, Context& context) {
  const runtime::Call call(context, "batch_dot", 0, 0);
  batch_dot_until(call.stop_point(), a, b, out, transpose_a, transpose_b);
}

}  // namespace qkv
