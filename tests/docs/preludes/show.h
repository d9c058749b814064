// SPDX-License-Identifier: Apache-2.0
// What stands before the code blocks of docs/ that are the body of a main function.
#ifndef TESTS_DOCS_PRELUDES_SHOW_H_
#define TESTS_DOCS_PRELUDES_SHOW_H_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <string>

#include <qkv/qkv.h>

using namespace qkv;

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// A float64 array of these values in C order.
inline Tensor tensor(const Dims& shape, std::initializer_list<double> values) {
  Tensor x(DType::kFloat64, shape);
  std::copy(values.begin(), values.end(), x.values<double>().begin());
  return x;
}

inline Tensor zeros(const Dims& shape) { return Tensor(DType::kFloat64, shape); }

// One line for each row along the last axis: name, index of the row, numbers.
inline void show(const char* name, const ConstView& x) {
  Dims index;
  for (int axis = 0; axis < x.rank(); ++axis) index.push_back(0);
  const Index width = std::max<Index>(x.size(-1), 1);
  for (Index row = 0; row < x.element_count() / width; ++row) {
    Index rest = row;
    Dims place;
    for (int axis = x.rank() - 2; axis >= 0; --axis) {
      index[axis] = rest % x.size(axis);
      rest /= x.size(axis);
    }
    for (int axis = 0; axis + 1 < x.rank(); ++axis) place.push_back(index[axis]);
    std::printf("%s%s", name, x.rank() > 1 ? to_string(place).c_str() : "");
    for (Index n = 0; n < x.size(-1); ++n) {
      index[x.rank() - 1] = n;
      if (x.dtype() == DType::kInt64) {
        std::printf(" %d", static_cast<int>(x.at<std::int64_t>(index)));
        continue;
      }
      const double value = x.dtype() == DType::kFloat32 ? static_cast<double>(x.at<float>(index))
                                                        : x.at<double>(index);
      std::printf(" %.4f", std::abs(value) < 0.00005 ? 0.0 : value);
    }
    std::printf("\n");
  }
}

#endif  // TESTS_DOCS_PRELUDES_SHOW_H_
