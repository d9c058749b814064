// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/show.h>

namespace {

TEST(Show, PrintsARowForEachLineOfAnArray) {
  testing::internal::CaptureStdout();
  qkv::show("x", qkv::tensor({2, 1, 2}, {1, -2.25, 1e-9, 4}));
  qkv::show("y", qkv::tensor({1}, {0.5}));
  qkv::show("none", qkv::zeros({0, 3}));
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "x[0,0] 1.0000 -2.2500\nx[1,0] 0.0000 4.0000\ny 0.5000\n");
}

TEST(Show, ATensorHasAValueForEachElement) {
  try {
    qkv::tensor({2, 2}, {1, 2, 3});
    FAIL();
  } catch (const qkv::Error& error) {
    EXPECT_STREQ(error.what(), "tensor: values must be 4 numbers for shape [2,2], got 3");
  }
}

}  // namespace
