// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <qkv/attention.h>
#include <qkv/error.h>

#include "core/elementary.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/shapes.h"
#include "core/storage.h"
#include "core/weight_factor.h"

namespace qkv {
namespace {

constexpr std::string_view kMerge = "merge";

void check_dtype(const char* name, const ConstView& x, DType wanted, const char* like) {
  if (x.dtype() == wanted) return;
  throw Error(
      kMerge, name,
      core::text("must be ", name_of(wanted), ", which follows from ", like, ", got ", describe(x)),
      ErrorKind::kType);
}

void check_shape(const char* name, const ConstView& x, const Dims& wanted, const char* letters) {
  if (x.shape() == wanted) return;
  throw Error(
      kMerge, name,
      core::text("must have the shape ", letters, " = ", to_string(wanted), ", got ", describe(x)));
}

void check(const View& out, const View& lse, const ConstView& out2, const ConstView& lse2) {
  const std::pair<const char*, ConstView> all[] = {
      {"out", out}, {"lse", lse}, {"out2", out2}, {"lse2", lse2}};
  for (const auto& [name, x] : all) {
    if (!x.given()) throw Error(kMerge, name, "is absent");
  }
  if (!is_real(out.dtype())) {
    throw Error(kMerge, "out",
                core::text("must be float64, float32, bfloat16 or float16, got ", describe(out)),
                ErrorKind::kType);
  }
  if (out.rank() < 2) {
    throw Error(kMerge, "out", core::text("must have rank 2 or more, got ", describe(out)));
  }
  const DType sums = accumulator_of(out.dtype());
  const Dims rows = core::sub_dims(out.shape(), 0, out.rank() - 1);
  check_dtype("lse", lse, sums, "out");
  check_shape("lse", lse, rows, "of out's rows");
  check_dtype("out2", out2, out.dtype(), "out");
  check_shape("out2", out2, out.shape(), "of out");
  check_dtype("lse2", lse2, sums, "out");
  check_shape("lse2", lse2, rows, "of out's rows");
  for (const auto& [name, result] : {all[0], all[1]}) {
    if (core::self_overlaps(result)) {
      throw Error(kMerge, name,
                  core::text("must not overlap itself, got ", describe(result), " with strides ",
                             to_string(result.strides())));
    }
    for (const auto& [other_name, other] : all) {
      if (std::string_view(name) == other_name || !core::may_overlap(result, other)) continue;
      throw Error(kMerge, name, core::text("must not share memory with ", other_name));
    }
  }
}

// The factors of the two rows in the merged row, its lse, and whether each of the two rows counts:
// an empty row does not.
template <class T>
struct Merged {
  T first, second, lse;
  bool first_counts = true;
  bool second_counts = true;
};

// Merges rows with the lse a and b. A row with lse = -inf is empty: the result is the other row. If
// neither row is empty, an lse of NaN or +inf makes the merged row NaN, as in a call of all keys.
template <class T>
Merged<T> merged(T a, T b) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
  if (b == kNone) return {T(1), T(0), a, true, false};
  if (a == kNone) return {T(0), T(1), b, false, true};
  if (!std::isfinite(a) || !std::isfinite(b)) return {kNaN, kNaN, kNaN};
  const T max = std::max(a, b);
  const T first = core::weight_exp(a - max);
  const T second = core::weight_exp(b - max);
  const T sum = first + second;
  return {first / sum, second / sum, max + core::portable_log(sum)};
}

template <class T, class Stored>
void merge_row(const Merged<T>& by, Stored* to, Index stride, const Stored* from, Index stride2,
               Index count) {
  if (!by.second_counts) return;  // an empty row may hold anything
  for (Index c = 0; c < count; ++c) {
    Stored& x = to[c * stride];
    const T first = core::to_accumulator<T>(x);
    const T second = core::to_accumulator<T>(from[c * stride2]);
    // A factor may be 0 because the weights are small: then NaN and infinity still enter the sum.
    if (!by.first_counts || (by.first == T(0) && std::isfinite(first))) {
      x = from[c * stride2];
    } else if (by.second != T(0) || !std::isfinite(second)) {
      x = core::from_accumulator<Stored>(by.first * first + by.second * second);
    }
  }
}

template <class T>
void merge_all(const View& out, const View& lse, const ConstView& out2, const ConstView& lse2) {
  const auto of_rows = [](const ConstView& x) {
    return core::sub_dims(x.strides(), 0, x.rank() - 1);
  };
  const std::array strides{of_rows(out), lse.strides(), of_rows(out2), lse2.strides()};
  core::for_each_offset(lse.shape(), strides, [&](const auto& at, const Dims&) {
    T& first = static_cast<T*>(lse.data())[at[1]];
    const Merged<T> by = merged(first, static_cast<const T*>(lse2.data())[at[3]]);
    first = by.lse;
    core::visit_dtype(out.dtype(), [&]<class Stored>(Stored*) {
      merge_row(by, static_cast<Stored*>(out.data()) + at[0], out.stride(-1),
                static_cast<const Stored*>(out2.data()) + at[2], out2.stride(-1), out.size(-1));
    });
  });
}

}  // namespace

void merge(const View& out, const View& lse, const ConstView& out2, const ConstView& lse2) {
  check(out, lse, out2, lse2);
  if (accumulator_of(out.dtype()) == DType::kFloat64) {
    merge_all<double>(out, lse, out2, lse2);
  } else {
    merge_all<float>(out, lse, out2, lse2);
  }
}

}  // namespace qkv
