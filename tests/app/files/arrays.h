// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_APP_ARRAYS_H_
#define TESTS_APP_ARRAYS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>

// Arrays that tests write, and comparisons of arrays that were written and read back.
namespace qkv::test {

// An array of -2, -1, 0, ... for a real type, else of 0, 1, 2, ... converted to `dtype`.
inline Tensor counted(DType dtype, const Dims& shape) {
  Tensor doubles(DType::kFloat64, shape);
  std::iota(doubles.values<double>().begin(), doubles.values<double>().end(), -2.0);
  if (is_real(dtype)) return convert(doubles, dtype);
  Tensor integers(DType::kInt64, shape);
  std::iota(integers.values<std::int64_t>().begin(), integers.values<std::int64_t>().end(), 0);
  return convert(integers, dtype);
}

// Expects that `got` has the dtype, shape and bytes of `want`.
inline void expect_same(const app::Array& got, const Tensor& want) {
  ASSERT_TRUE(std::holds_alternative<Tensor>(got));
  const Tensor& tensor = std::get<Tensor>(got);
  ASSERT_EQ(tensor.dtype(), want.dtype());
  ASSERT_EQ(tensor.shape(), want.shape());
  const auto* a = static_cast<const char*>(tensor.view().data());
  const auto* b = static_cast<const char*>(want.view().data());
  const auto bytes = static_cast<std::size_t>(want.element_count()) * size_of(want.dtype());
  EXPECT_TRUE(std::equal(a, a + bytes, b));
}

inline void expect_same(const app::Array& got, const app::Strings& want) {
  ASSERT_TRUE(std::holds_alternative<app::Strings>(got));
  EXPECT_EQ(std::get<app::Strings>(got).shape, want.shape);
  EXPECT_EQ(std::get<app::Strings>(got).values, want.values);
}

inline void expect_same(const app::Array& got, const app::Array& want) {
  std::visit([&](const auto& array) { expect_same(got, array); }, want);
}

inline void expect_same(const app::Array& got, const app::Unread& want) {
  EXPECT_EQ(app::describe(got), app::describe(want));
}

// Returns the bytes of a safetensors file, in which the F32 array `name` has the unknown type X32.
inline std::string with_unread(std::string file, const std::string& name) {
  const std::string before = "\"" + name + "\":{\"dtype\":\"";
  const std::size_t at = file.find(before + "F32\"");
  EXPECT_NE(at, file.npos) << name;
  return file.replace(at + before.size(), 1, "X");
}

inline std::vector<app::NamedView> views(const std::vector<app::NamedArray>& arrays) {
  std::vector<app::NamedView> result;
  for (const app::NamedArray& array : arrays) {
    if (const auto* tensor = std::get_if<Tensor>(&array.array)) {
      result.push_back({array.name, tensor->view()});
    } else {
      result.push_back({array.name, &std::get<app::Strings>(array.array)});
    }
  }
  return result;
}

inline std::vector<app::NamedArray> some_arrays() {
  std::vector<app::NamedArray> arrays;
  arrays.push_back({"x", counted(DType::kFloat32, {200, 30})});
  arrays.push_back({"empty", Tensor(DType::kFloat64, {0, 3})});
  arrays.push_back({"naïve", app::Strings{{2}, {"a", "bc"}}});
  return arrays;
}

inline void expect_all(const std::vector<app::NamedArray>& got,
                       const std::vector<app::NamedArray>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    expect_same(got[i].array, want[i].array);
  }
}

}  // namespace qkv::test

#endif  // TESTS_APP_ARRAYS_H_
