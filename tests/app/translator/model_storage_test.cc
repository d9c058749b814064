// SPDX-License-Identifier: Apache-2.0
// Tests model files whose parameters have 16 bits.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/app/translation_model.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "tests/app/files/files.h"
#include "tests/app/translator/small_model.h"
#include "tests/support/compare.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using test::small_model;

// Rounds a number to a type of 16 bits (NarrowType) by arithmetic alone: to nearest, ties to even.
double rounded_to(double value, int digits, int least_exponent) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - digits, least_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

struct NarrowType {
  ParameterStorage storage;
  const char* name;
  int digits;          // bits of the significand
  int least_exponent;  // log2 of the smallest positive number
};
constexpr NarrowType kNarrowTypes[] = {{ParameterStorage::kFloat16, "float16", 11, -24},
                                       {ParameterStorage::kBFloat16, "bfloat16", 8, -133}};

void set_first(TranslationModel& model, std::string_view name, double value) {
  for_each_parameter(model.translator, [&](const BasicParameter<Tensor>& parameter) {
    if (parameter.name != name) return;
    copy(ConstView(&value, {1}), slice(reshape(parameter.value.view(), {-1}), 0, 0, 1));
  });
}

TEST(ModelStorage, ParametersOfHalfTheSizeAreRoundedOnce) {
  const Directory directory;
  for (const NarrowType& type : kNarrowTypes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      SCOPED_TRACE(std::string(type.name) + " of " + std::string(name_of(dtype)));
      TranslationModel model = small_model({.dtype = dtype});
      set_first(model, "output.bias", 1 + 0x1p-11);  // between two numbers of float16
      set_first(model, "start.bias", 1 + 0x1p-8);    // between two numbers of bfloat16
      // In float64 this is just above the midpoint of two numbers of float16; rounded to float32
      // first, it would be the midpoint and then be rounded down.
      set_first(model, "readout.bias", 1 + 0x1p-11 + 0x1p-40);
      set_first(model, "start.weight", 3 * 0x1p-25);  // below the normal numbers of float16
      write_model_file(directory / "m", model, {.storage = type.storage});
      const TranslationModel read = read_model_file(directory / "m");
      std::vector<double> want;
      for_each_parameter(model.translator, [&](const auto& p) {
        for (const double value : test::values_of(p.value)) {
          want.push_back(rounded_to(value, type.digits, type.least_exponent));
        }
      });
      std::size_t n = 0;
      for_each_parameter(read.translator, [&](const auto& p) {
        EXPECT_EQ(p.value.dtype(), dtype);
        for (const double value : test::values_of(p.value)) {
          ASSERT_LT(n, want.size());
          EXPECT_EQ(value, want[n++]) << p.name;
        }
      });
      EXPECT_EQ(n, want.size());
      // Writing rounded parameters again changes nothing.
      write_model_file(directory / "again", read, {.storage = type.storage});
      EXPECT_EQ(test::read(directory / "again"), test::read(directory / "m"));
      EXPECT_TRUE(std::ranges::equal(read.source.tokens(), model.source.tokens()));
      EXPECT_TRUE(std::ranges::equal(read.target.tokens(), model.target.tokens()));
    }
  }
}

TEST(ModelStorage, NumbersThatDoNotFitAreRefused) {
  const Directory directory;
  const auto refusal = [&](double value, ParameterStorage storage) {
    TranslationModel model = small_model();
    set_first(model, "decoder.bias_hh", value);
    return complaint<Error>(
        [&] { write_model_file(directory / "m", model, {.storage = storage}); });
  };
  const std::string start = "write_model_file: decoder.bias_hh must be finite as ";
  EXPECT_EQ(refusal(-65520, ParameterStorage::kFloat16), start + "float16, got -65520");
  EXPECT_EQ(refusal(INFINITY, ParameterStorage::kFloat16), start + "float16, got inf");
  EXPECT_EQ(refusal(NAN, ParameterStorage::kBFloat16), start + "bfloat16, got nan");
  EXPECT_TRUE(directory.names().empty());
  EXPECT_EQ(refusal(-65519, ParameterStorage::kFloat16), "no exception");
  EXPECT_EQ(refusal(-65520, ParameterStorage::kBFloat16), "no exception");
  // Parameters that are not rounded may be non-finite.
  EXPECT_EQ(refusal(INFINITY, ParameterStorage::kUnchanged), "no exception");
}

// A file of 16-bit parameters has two bytes for each parameter, and four for each token's count
// unless a count of the vocabulary needs eight.
TEST(ModelStorage, OfHalfTheSizeIsHalfTheSize) {
  const Directory directory;
  const auto bytes_of = [&](const TranslationModel& model, ParameterStorage storage) {
    write_model_file(directory / "m", model, {.storage = storage});
    Index bytes = 0;
    for (const NamedArray& array : read_safetensors(directory / "m")) {
      const auto* tensor = std::get_if<Tensor>(&array.array);
      if (tensor == nullptr) continue;
      bytes += tensor->element_count() * static_cast<Index>(size_of(tensor->dtype()));
    }
    return bytes;
  };
  TranslationModel model = small_model();
  const Index count = parameter_count(model.translator);
  EXPECT_EQ(bytes_of(model, ParameterStorage::kUnchanged), 4 * count + 8 * (4 + 5));
  EXPECT_EQ(bytes_of(model, ParameterStorage::kFloat16), 2 * count + 4 * (4 + 5));
  EXPECT_EQ(bytes_of(model, ParameterStorage::kBFloat16), 2 * count + 4 * (4 + 5));
  model.target = Vocabulary({{"v", Index{1} << 31}, {"w", 5}, {"x", 1}, {"y", 1}, {"z", 1}});
  EXPECT_EQ(bytes_of(model, ParameterStorage::kFloat16), 2 * count + 4 * 4 + 8 * 5);
  EXPECT_EQ(read_model_file(directory / "m").target.tokens()[0].count, Index{1} << 31);
}

}  // namespace
}  // namespace qkv::app
