// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/q8.h>
#include <qkv/tensor.h>

#include "tests/support/errors.h"
#include "tests/support/stops.h"

namespace qkv {
namespace {

using Block = std::array<float, 32>;

Block restored(const BlockQ8& block) {
  Block numbers;
  dequantize_q8(ConstView(&block, {1}), View(numbers.data(), {32}));
  return numbers;
}

BlockQ8 quantized(const Block& numbers) {
  BlockQ8 block;
  quantize_q8(ConstView(numbers.data(), {32}), View(&block, {1}));
  return block;
}

TEST(Q8, IsGgmlsLayoutAndRounding) {
  EXPECT_EQ(size_of(DType::kQ8), 34U);
  EXPECT_EQ(name_of(DType::kQ8), "q8");
  EXPECT_EQ(dtype_of<BlockQ8>, DType::kQ8);
  EXPECT_FALSE(is_real(DType::kQ8));
  Block numbers{};
  numbers[0] = 127;      // the scale is 1
  numbers[1] = -126.5F;  // halves are rounded away from zero
  numbers[2] = 0.5F;
  numbers[3] = -0.49F;
  numbers[31] = -2.5F;
  const BlockQ8 block = quantized(numbers);
  EXPECT_EQ(static_cast<float>(block.scale), 1);
  EXPECT_EQ(block.values[0], 127);
  EXPECT_EQ(block.values[1], -127);
  EXPECT_EQ(block.values[2], 1);
  EXPECT_EQ(block.values[3], 0);
  EXPECT_EQ(block.values[30], 0);
  EXPECT_EQ(block.values[31], -3);
  EXPECT_EQ(restored(block)[31], -3);
}

// The bound is a / 254 + max(a / 2048, 2^-18), where a is the largest |x| of a block; see qkv/q8.h.
TEST(Q8, ErrorsKeepTheirBound) {
  std::mt19937 bits(1);
  std::normal_distribution<float> normal;
  double most = 0;
  for (int exponent = -22; exponent <= 20; ++exponent) {
    for (int n = 0; n < 200; ++n) {
      Block numbers;
      for (float& x : numbers) x = std::ldexp(normal(bits), exponent);
      float largest = 0;
      for (const float x : numbers) largest = std::max(largest, std::fabs(x));
      const Block got = restored(quantized(numbers));
      const double bound = largest / 254.0 * (1 + 1e-5) + std::max(largest / 2048.0, 0x1p-18);
      for (std::size_t c = 0; c < numbers.size(); ++c) {
        const double error = std::fabs(static_cast<double>(got[c]) - numbers[c]);
        ASSERT_LE(error, bound) << exponent << " " << numbers[c] << " of " << largest;
        if (exponent >= 0) most = std::max(most, error / largest);
      }
    }
  }
  EXPECT_GT(most, 0.9 / 254);  // the bound is not much larger than the errors
}

TEST(Q8, SmallAndZeroBlocksAreZero) {
  EXPECT_EQ(restored(quantized({})), Block{});
  Block tiny{};
  tiny[5] = 1e-7F;
  tiny[6] = -std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(restored(quantized(tiny)), Block{});
  EXPECT_EQ(quantized(tiny).values[5], 0);
}

// The product of a value and a finite scale is exact in float32.
TEST(Q8, NumbersAreExactProducts) {
  for (unsigned n = 0; n < 0x10000; n += 7) {
    BlockQ8 block;
    block.scale = Float16::from_bits(static_cast<std::uint16_t>(n));
    for (int c = 0; c < 32; ++c) block.values[c] = static_cast<std::int8_t>(c * 8 - 128);
    const Block got = restored(block);
    const double scale = static_cast<float>(block.scale);
    if (!std::isfinite(scale)) continue;
    for (int c = 0; c < 32; ++c) {
      ASSERT_EQ(static_cast<double>(got[static_cast<std::size_t>(c)]), scale * (c * 8 - 128));
    }
  }
}

TEST(Q8, TakesAnyStridesAndNarrowNumbers) {
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  Tensor x(DType::kFloat32, {3, 5, 64});
  for (float& value : x.values<float>()) value = normal(bits);
  Tensor plain(DType::kQ8, {3, 5, 2});
  quantize_q8(x, plain);
  // The arrays are transposed, reversed, and have channels that are not contiguous.
  Tensor wide(DType::kFloat32, {5, 3, 128});
  const View apart = slice(transpose(wide, 0, 1), -1, 0, 128, 2);
  copy(slice(x, 1, 4, -1, -1), apart);
  Tensor blocks(DType::kQ8, {5, 3, 4});
  const View target = slice(transpose(blocks, 0, 1), -1, 0, 4, 2);
  quantize_q8(apart, target);
  Tensor want(DType::kFloat32, {3, 5, 64}), got(DType::kFloat32, {3, 5, 64});
  dequantize_q8(plain, want);
  dequantize_q8(target, slice(got, 1, 4, -1, -1));
  EXPECT_TRUE(std::ranges::equal(got.values<float>(), want.values<float>()));
  for (std::size_t n = 0; n < 3 * 5 * 64; ++n) {
    EXPECT_NEAR(want.values<float>()[n], x.values<float>()[n], 0.02);
  }

  for (const DType narrow : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor rounded = convert(x, narrow);
    Tensor of_narrow(DType::kQ8, {3, 5, 2}), of_wide(DType::kQ8, {3, 5, 2});
    quantize_q8(rounded, of_narrow);
    quantize_q8(convert(rounded, DType::kFloat32), of_wide);
    dequantize_q8(of_narrow, got);
    dequantize_q8(of_wide, want);
    EXPECT_TRUE(std::ranges::equal(got.values<float>(), want.values<float>()));
  }
}

// Copies leave blocks as they are, even with a scale of NaN, and do not convert them to other
// types.
TEST(Q8, CopiesKeepBlocks) {
  Tensor blocks(DType::kQ8, {2, 3});
  std::uint16_t bits = 0x7DFF;  // a signalling NaN, then others
  for (BlockQ8& block : blocks.values<BlockQ8>()) {
    block.scale = Float16::from_bits(bits++);
    block.values[31] = static_cast<std::int8_t>(bits);
  }
  const ConstView backwards = slice(transpose(blocks, 0, 1), 0, 2, -1, -1);
  const Tensor copied = contiguous(backwards);
  ASSERT_EQ(copied.dtype(), DType::kQ8);
  ASSERT_EQ(copied.shape(), (Dims{3, 2}));
  for (Index n = 0; n < 3; ++n) {
    for (Index m = 0; m < 2; ++m) {
      const BlockQ8 want = blocks.values<BlockQ8>()[static_cast<std::size_t>(m * 3 + 2 - n)];
      const BlockQ8 got = copied.values<BlockQ8>()[static_cast<std::size_t>(n * 2 + m)];
      EXPECT_EQ(std::memcmp(&got, &want, sizeof(BlockQ8)), 0) << n << " " << m;
    }
  }
  Tensor all(DType::kQ8, {4, 2, 3});
  copy(blocks, all);
  EXPECT_EQ(std::memcmp(all.view().as<BlockQ8>() + 18, blocks.view().data(), 6 * sizeof(BlockQ8)),
            0);
  const std::string rule = " converts between real types, or between integer types and bool, got ";
  EXPECT_EQ(test::error_of([&] { convert(blocks, DType::kFloat32); }),
            "TypeError: convert: source" + rule + "q8 [2,3] for float32");
  Tensor bytes(DType::kUInt8, {2, 3});
  EXPECT_EQ(test::error_of([&] { copy(bytes, blocks); }),
            "TypeError: copy: source" + rule + "uint8 [2,3] for q8");
}

TEST(Q8, EmptyArraysAreEmpty) {
  Tensor x(DType::kFloat32, {0, 32}), to(DType::kQ8, {0, 1});
  EXPECT_NO_THROW(quantize_q8(x, to));
  EXPECT_NO_THROW(dequantize_q8(to, x));
}

TEST(Q8, WrongCallsAreErrors) {
  Tensor x(DType::kFloat32, {2, 64}), to(DType::kQ8, {2, 2}), integers(DType::kInt32, {2, 64});
  Tensor broken(DType::kFloat32, {2, 40}), other(DType::kQ8, {2, 1}), f64(DType::kFloat64, {2, 64});
  const auto expect = [](const std::string& text, const auto& call) {
    EXPECT_EQ(test::error_of(call), text);
  };
  expect("quantize_q8: x is absent", [&] { quantize_q8({}, to); });
  expect("quantize_q8: to is absent", [&] { quantize_q8(x, {}); });
  expect("TypeError: quantize_q8: x must be float32, bfloat16 or float16, got int32 [2,64]",
         [&] { quantize_q8(integers, to); });
  expect("TypeError: quantize_q8: x must be float32, bfloat16 or float16, got float64 [2,64]",
         [&] { quantize_q8(f64, to); });
  expect("TypeError: quantize_q8: to must be q8, got float64 [2,64]", [&] { quantize_q8(x, f64); });
  expect("quantize_q8: x must have a last axis of a multiple of 32, got float32 [2,40]",
         [&] { quantize_q8(broken, other); });
  expect(
      "quantize_q8: to must have the shape [..,D/32] = [2,2] where x is [..,D] = [2,64], got q8 "
      "[2,1]",
      [&] { quantize_q8(x, other); });
  expect("TypeError: dequantize_q8: to must be float32, got float64 [2,64]",
         [&] { dequantize_q8(to, f64); });
  expect("TypeError: dequantize_q8: x must be q8, got int32 [2,64]",
         [&] { dequantize_q8(integers, x); });
  expect("dequantize_q8: x is absent", [&] { dequantize_q8({}, x); });
  expect("dequantize_q8: to is absent", [&] { dequantize_q8(to, {}); });
  expect("quantize_q8: to must not share memory with x (x [1,32], to [1,1])", [&] {
    quantize_q8(ConstView(x.values<float>().data(), {1, 32}),
                View(reinterpret_cast<BlockQ8*>(x.values<float>().data()), {1, 1}));
  });
  expect(
      "quantize_q8: to must not overlap itself, got q8 [2,2] with strides "
      "[0,1]",
      [&] {
        quantize_q8(x, View(to.view().as<BlockQ8>(), {2, 2}, {0, 1}));
      });
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const char* const rule =
      "quantize_q8: x must hold numbers between -65520 * 127 and 65520 * 127, got ";
  x.values<float>()[70] = kInfinity;
  expect(std::string(rule) + "inf in float32 [2,64]", [&] { quantize_q8(x, to); });
  x.values<float>()[70] = std::nanf("");
  expect(std::string(rule) + "nan in float32 [2,64]", [&] { quantize_q8(x, to); });
  x.values<float>()[70] = -8.4e6F;
  expect(std::string(rule) + "-8.4e+06 in float32 [2,64]", [&] { quantize_q8(x, to); });
  x.values<float>()[70] = -8.3e6F;
  EXPECT_NO_THROW(quantize_q8(x, to));
}

// Once the flag is set, a call converts at most what comes before its next read of the flag.
TEST(Q8, AContextStopsIt) {
  const Index count = Index{1} << 20;
  test::TouchedArray numbers(DType::kFloat32, {count}), blocks(DType::kQ8, {count / 32});
  const auto there = [&](Context& context) { quantize_q8(numbers, blocks, context); };
  const auto back = [&](Context& context) { dequantize_q8(blocks, numbers, context); };
  EXPECT_EQ(test::cancelled_midway(numbers, 9, there), Cancelled("quantize_q8").what());
  EXPECT_EQ(test::cancelled_midway(numbers, 9, back), Cancelled("dequantize_q8").what());
  EXPECT_EQ(test::cancelled_by(false, there), "");
  EXPECT_EQ(test::cancelled_by(false, back), "");
}

}  // namespace
}  // namespace qkv
