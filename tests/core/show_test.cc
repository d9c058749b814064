// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/show.h>

namespace {

TEST(Show, PrintsALineForEachRowOfAnArray) {
  testing::internal::CaptureStdout();
  qkv::show("x", qkv::tensor({2, 1, 2}, {1, -2.25, 1e-9, 4}));
  qkv::show("y", qkv::tensor({1}, {0.5}));
  qkv::show("none", qkv::zeros({0, 3}));
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "x[0,0] 1.0000 -2.2500\nx[1,0] 0.0000 4.0000\ny 0.5000\n");
}

// Returns what show("x", x) prints.
std::string shown(const qkv::ConstView& x) {
  testing::internal::CaptureStdout();
  qkv::show("x", x);
  return testing::internal::GetCapturedStdout();
}

TEST(Show, PrintsEveryDtype) {
  using qkv::DType;
  const qkv::Tensor numbers = qkv::tensor({1, 3}, {1, -2.25, 0.5});
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(shown(qkv::convert(numbers, dtype)), "x[0] 1.0000 -2.2500 0.5000\n");
  }
  const std::vector<std::int32_t> whole{3, 0, 100};
  for (const DType dtype : {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64,
                            DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    EXPECT_EQ(shown(qkv::convert(qkv::ConstView(whole), dtype)), "x 3 0 100\n");
  }
  EXPECT_EQ(shown(qkv::convert(qkv::ConstView(whole), DType::kBool)), "x 1 0 1\n");
  const std::vector<std::uint64_t> largest{~std::uint64_t{0}};
  EXPECT_EQ(shown(largest), "x 18446744073709551615\n");
  const std::int32_t negative = -7;
  EXPECT_EQ(shown(qkv::ConstView(&negative, qkv::Dims())), "x -7\n");
}

TEST(Show, PrintsAnyStrides) {
  const qkv::Tensor x = qkv::tensor({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(shown(qkv::transpose(x.view(), 0, 1)),
            "x[0] 1.0000 4.0000\nx[1] 2.0000 5.0000\nx[2] 3.0000 6.0000\n");
}

TEST(Show, RefusesOtherDtypesBeforeItPrints) {
  const auto refused = [](const qkv::ConstView& x) {
    testing::internal::CaptureStdout();
    std::string message;
    try {
      qkv::show("x", x);
    } catch (const qkv::Error& error) {
      message = error.what();
      EXPECT_EQ(error.kind(), qkv::ErrorKind::kType);
    }
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    return message;
  };
  const std::string rule = "show: x must hold real numbers, integers or bools, got ";
  EXPECT_EQ(refused(qkv::Tensor(qkv::DType::kComplex128, {2})), rule + "complex128 [2]");
  EXPECT_EQ(refused(qkv::Tensor(qkv::DType::kQ8, {2, 1})), rule + "q8 [2,1]");
  EXPECT_EQ(refused({}), rule + "absent");
}

TEST(Show, TensorNeedsAValueForEachElement) {
  try {
    qkv::tensor({2, 2}, {1, 2, 3});
    FAIL();
  } catch (const qkv::Error& error) {
    EXPECT_STREQ(error.what(), "tensor: values must be 4 numbers for shape [2,2], got 3");
  }
}

}  // namespace
