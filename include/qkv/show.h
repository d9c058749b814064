// SPDX-License-Identifier: Apache-2.0
// Helpers for first experiments and for the examples of the documentation: functions that make a
// float64 array from numbers, and print an array. Not part of qkv/qkv.h, which this header
// includes.
#ifndef QKV_SHOW_H_
#define QKV_SHOW_H_

#include <algorithm>
#include <cmath>
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

// Prints a line for each row along the last axis: the name, the row's index, its numbers with four
// decimals. Reads float64, float32 and int64; throws Error (kType) for others.
inline void show(const char* name, const ConstView& x) {
  Dims index;
  for (int axis = 0; axis < x.rank(); ++axis) index.push_back(0);
  const Index width = std::max<Index>(x.size(-1), 1);
  for (Index row = 0; row < x.element_count() / width; ++row) {
    Index rest = row;
    Dims row_index;
    for (int axis = x.rank() - 2; axis >= 0; --axis) {
      index[axis] = rest % x.size(axis);
      rest /= x.size(axis);
    }
    for (int axis = 0; axis + 1 < x.rank(); ++axis) row_index.push_back(index[axis]);
    std::printf("%s%s", name, x.rank() > 1 ? to_string(row_index).c_str() : "");
    for (Index n = 0; n < x.size(-1); ++n) {
      index[x.rank() - 1] = n;
      if (x.dtype() == DType::kInt64) {
        std::printf(" %lld", static_cast<long long>(x.at<std::int64_t>(index)));
        continue;
      }
      const double value = x.dtype() == DType::kFloat32 ? static_cast<double>(x.at<float>(index))
                                                        : x.at<double>(index);
      std::printf(" %.4f", std::abs(value) < 0.00005 ? 0.0 : value);
    }
    std::printf("\n");
  }
}

}  // namespace qkv

#endif  // QKV_SHOW_H_
