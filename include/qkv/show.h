// SPDX-License-Identifier: Apache-2.0
// Helpers for first experiments and for the examples of the documentation: functions that make a
// float64 array from numbers, and print an array. Not part of qkv/qkv.h, which this header
// includes.
#ifndef QKV_SHOW_H_
#define QKV_SHOW_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>

#include <qkv/qkv.h>

namespace qkv {

// A float64 array of the shape, with these values in C order. Throws Error (kValue) unless
// there is one value for each element.
inline Tensor tensor(const Dims& shape, std::initializer_list<double> values) {
  Tensor x(DType::kFloat64, shape);
  if (static_cast<Index>(values.size()) != x.element_count()) {
    throw Error("tensor", "values",
                "must be " + std::to_string(x.element_count()) + " numbers for shape " +
                    to_string(shape) + ", got " + std::to_string(values.size()));
  }
  std::copy(values.begin(), values.end(), x.values<double>().begin());
  return x;
}

// A float64 array of zeros.
inline Tensor zeros(const Dims& shape) { return Tensor(DType::kFloat64, shape); }

// Prints a line for each row along the last axis: the name, the row's index and the row's numbers,
// with four decimals if the dtype is real. Throws Error (kType) for blocks of q8, complex128 and an
// absent array, before it prints.
inline void show(const char* name, const ConstView& x) {
  const DType dtype = x.dtype();
  if (!is_real(dtype) && !is_integer(dtype) && dtype != DType::kBool) {
    throw Error("show", "x", "must hold real numbers, integers or bools, got " + describe(x),
                ErrorKind::kType);
  }
  // `all` is C-ordered, in a dtype that holds every number of x.
  const Tensor all = convert(x, is_real(dtype)            ? DType::kFloat64
                                : dtype == DType::kUInt64 ? DType::kUInt64
                                                          : DType::kInt64);
  const Index width = x.rank() == 0 ? 1 : x.size(-1);
  Dims row;  // the index of a row along all axes but the last
  for (int axis = 0; axis + 1 < x.rank(); ++axis) row.push_back(0);
  for (Index n = 0; n < all.element_count(); ++n) {
    if (n % width == 0) {
      Index rest = n / width;
      for (int axis = row.rank() - 1; axis >= 0; --axis) {
        row[axis] = rest % x.size(axis);
        rest /= x.size(axis);
      }
      std::printf("%s%s", name, row.rank() > 0 ? to_string(row).c_str() : "");
    }
    const auto place = static_cast<std::size_t>(n);
    if (is_real(dtype)) {
      const double value = all.values<double>()[place];
      std::printf(" %.4f", std::abs(value) < 0.00005 ? 0.0 : value);
    } else {
      std::printf(" %s",
                  (dtype == DType::kUInt64 ? std::to_string(all.values<std::uint64_t>()[place])
                                           : std::to_string(all.values<std::int64_t>()[place]))
                      .c_str());
    }
    if (n % width == width - 1) std::printf("\n");
  }
}

}  // namespace qkv

#endif  // QKV_SHOW_H_
