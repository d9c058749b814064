// SPDX-License-Identifier: Apache-2.0
#include "kernels/dot2_kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/bfloat16_dot2.h"
#include "kernels/additive_kernels.h"
#include "kernels/gradient_kernels.h"
#include "kernels/gru_kernels.h"
#include "kernels/logit_kernels.h"
#include "kernels/update_kernels.h"
#include "tests/kernels/targets.h"

// BF16 two-way dot products are bit-identical with plain arithmetic: with subnormal, huge and
// non-finite numbers, and odd counts of channels and keys.
namespace qkv::kernels {
namespace {

class Dot2Kernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_supported(Target::kAvx512Bf16)) GTEST_SKIP() << "this CPU has no avx512bf16";
  }
};

// kPlain: normally distributed numbers. kOdd: some of these replaced by any bits. kTiny: products
// near the smallest numbers.
enum class Numbers { kPlain, kOdd, kTiny };
constexpr Numbers kNumbers[] = {Numbers::kPlain, Numbers::kOdd, Numbers::kTiny};

// Rows of BF16 numbers with gaps of NaN, which no kernel may read.
struct Rows {
  Index stride;
  std::vector<BFloat16> values;

  Rows(Index rows, Index width, Numbers numbers, unsigned seed)
      : stride(width + 3), values(at(rows * stride)) {
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (Index n = 0; n < rows * stride; ++n) {
      const float scale = numbers == Numbers::kTiny ? 0x1p-64F : 1.0F;
      BFloat16 value = core::from_float<BFloat16>(normal(bits) * scale);
      if (numbers == Numbers::kOdd && bits() % 7 == 0) {
        value = BFloat16::from_bits(static_cast<std::uint16_t>(bits()));
      }
      values[at(n)] = n % stride < width ? value : BFloat16::from_bits(0x7FC0);
    }
  }
  StoredRows rows() const { return {values.data(), DType::kBFloat16, stride}; }
  float operator()(Index row, Index c) const {
    return core::to_float(values[at(row * stride + c)]);
  }
  std::vector<float> row(Index r, Index width) const {
    std::vector<float> wide;
    for (Index c = 0; c < width; ++c) wide.push_back((*this)(r, c));
    return wide;
  }
};

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b)
                       : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

constexpr Index kWidths[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 96, 127, 128, 200};
constexpr Index kKeys[] = {1, 2, 15, 16, 17, 33, 63, 64};

TEST_F(Dot2Kernels, ScoresAreTheMeaning) {
  const DotKernels<float>& k = dot2_kernels();
  constexpr Index kMostRows = 16;
  const std::byte* const any = reinterpret_cast<const std::byte*>(&k);
  for (const Numbers numbers : kNumbers) {
    for (const Index D : kWidths) {
      const Rows q(kMostRows, D, numbers, 1);
      const Rows keys(kPanel, D, numbers, 2);
      std::vector<float> words(at(kMostRows * D), NAN);
      k.widen(q.rows(), kMostRows, D, {words.data(), D});
      std::vector<float> wants;
      for (Index r = 0; r < kMostRows; ++r) {
        for (Index n = 0; n < kPanel; ++n) {
          wants.push_back(0.3F * core::dot2(q.row(r, D).data(), keys.row(n, D).data(), D));
        }
      }
      for (const Index count : kKeys) {
        std::vector<float> panel(at(kPanel * D));
        k.pack_panel(keys.rows(), count, D, panel.data());
        for (const Index rows : {1, 2, 6, 7, 8, 9, 12, 16}) {
          std::vector<float> packed(at(kMostRows * kPanel)), stored(at(kMostRows * kPanel), 7);
          k.scores({words.data(), D}, rows, D, panel.data(), 0.3F, {packed.data(), kPanel});
          k.stored_scores({words.data(), D}, rows, D, keys.rows(), count, 0.3F,
                          {stored.data(), kPanel}, {any, 1, 3});
          for (Index r = 0; r < rows; ++r) {
            for (Index n = 0; n < kPanel; ++n) {
              const float want = wants[at(r * kPanel + n)];
              const float got = packed[at(r * kPanel + n)];
              if (n >= count && numbers == Numbers::kPlain) {
                ASSERT_EQ(got, 0.0F);
              }
              if (n < count) {
                ASSERT_PRED2(same, got, want) << D << " " << count << " " << r << " " << n;
                ASSERT_PRED2(same, stored[at(r * kPanel + n)], want)
                    << D << " " << count << " " << r << " " << n;
              }
              if (n >= (count + 15) / 16 * 16) {
                ASSERT_EQ(stored[at(r * kPanel + n)], 7.0F);
              }
            }
          }
        }
      }
    }
  }
}

// Products of 2^-126 and a little more, from which a smaller number is subtracted: whether a result
// is tiny is decided before it is rounded to the bits of a subnormal number.
TEST_F(Dot2Kernels, WhatIsTinyIsDecidedOnTwentyFourBits) {
  const DotKernels<float>& k = dot2_kernels();
  const std::byte* const any = reinterpret_cast<const std::byte*>(&k);
  std::mt19937 random(5);
  const auto number = [](int exponent, unsigned fraction, bool negative) {
    return BFloat16::from_bits(static_cast<std::uint16_t>(
        (negative ? 0x8000U : 0U) | static_cast<unsigned>(exponent + 127) << 7 | (fraction & 127)));
  };
  int tiny = 0;
  int rounded_up = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    // Pair 0 is added first: its first element is the larger product.
    std::vector<BFloat16> q(4), keys(at(4 * kPanel));
    q[0] = number(-63, random() % 4 == 0 ? random() % 3 : 0, false);
    q[2] = number(-75, random(), random() % 8 != 0);
    for (Index n = 0; n < kPanel; ++n) {
      keys[at(4 * n)] = number(-63, random() % 4 == 0 ? random() % 3 : 0, false);
      keys[at(4 * n + 2)] = number(-78 + static_cast<int>(random() % 6), random(), false);
    }
    std::vector<float> words(4), stored(at(kPanel));
    k.widen({q.data(), DType::kBFloat16, 4}, 1, 4, {words.data(), 4});
    k.stored_scores({words.data(), 4}, 1, 4, {keys.data(), DType::kBFloat16, 4}, kPanel, 1.0F,
                    {stored.data(), kPanel}, {any, 1, 3});
    for (Index n = 0; n < kPanel; ++n) {
      float a[4], b[4];
      for (Index c = 0; c < 4; ++c) {
        a[c] = core::to_float(q[at(c)]);
        b[c] = core::to_float(keys[at(4 * n + c)]);
      }
      const float want = core::dot2(a, b, 4);
      ASSERT_PRED2(same, stored[at(n)], want) << trial << " " << n;
      tiny += want == 0 ? 1 : 0;
      rounded_up += want == 0x1p-126F && a[2] < 0 ? 1 : 0;
    }
  }
  EXPECT_GT(tiny, 100);
  EXPECT_GT(rounded_up, 100);
}

TEST_F(Dot2Kernels, SumsAreTheMeaning) {
  const DotKernels<float>& k = dot2_kernels();
  for (const Numbers numbers : kNumbers) {
    for (const Index E : kWidths) {
      const Rows v(kPanel, E, numbers, 3);
      const Index width = (E + 15) / 16 * 16;
      std::vector<float> weights(at(kTileRows * kPanel));
      std::mt19937 bits(4);
      std::uniform_real_distribution<float> some(0, 1);
      for (float& w : weights) w = numbers == Numbers::kTiny ? some(bits) * 0x1p-63F : some(bits);
      for (const Index count : kKeys) {
        std::vector<float> words = weights;
        for (Index r = 0; r < kTileRows; ++r) {
          float* row = words.data() + r * kPanel;
          std::fill(row + count, row + kPanel, 0.0F);
          k.round_weights(row, kPanel, row);
        }
        std::vector<float> words_of(at(kPanel / 2 * E));
        k.join_values(v.rows(), count, E, {words_of.data(), E});
        for (Index rows = 1; rows <= kTileRows; ++rows) {
          std::vector<float> got(at(kTileRows * width), 0.5F), stored = got, want = got;
          k.weighted_sum({words.data(), kPanel}, rows, {words_of.data(), E}, count, E,
                         {got.data(), width});
          k.stored_sum({words.data(), kPanel}, rows, v.rows(), count, E, {stored.data(), width},
                       {});
          for (Index r = 0; r < rows; ++r) {
            for (Index n = 0; n < (count + 1) / 2 * 2; ++n) {
              const Index key = n ^ 1;  // the second key of a word first
              if (key >= count) continue;
              const float w = core::rounded_weight(weights[at(r * kPanel + key)]);
              for (Index c = 0; c < E; ++c) {
                float& sum = want[at(r * width + c)];
                sum = core::add_flushed_product(w, v(key, c), sum);
              }
            }
          }
          for (std::size_t n = 0; n < want.size(); ++n) {
            ASSERT_PRED2(same, got[n], want[n]) << E << " " << rows << " " << count << " at " << n;
            ASSERT_PRED2(same, stored[n], want[n])
                << E << " " << rows << " " << count << " at " << n;
          }
        }
      }
    }
  }
}

// Weights are rounded to nearest, ties to even, and subnormal ones to 0; `to` may be their own
// place.
TEST_F(Dot2Kernels, WeightsAreRoundedOnce) {
  const DotKernels<float>& k = dot2_kernels();
  std::vector<float> w(3 * kPanel);
  std::mt19937 bits(5);
  std::uniform_real_distribution<float> exponent(-140, 0);
  for (float& x : w) x = std::exp2(exponent(bits));
  w[0] = 1 + 0x1p-8F;       // a tie, to even
  w[1] = 1 + 0x3p-8F;       // a tie, to even, upwards
  w[2] = 0x1p-126F;         // the smallest that does not become 0
  w[3] = 0x1.FFFFFEp-127F;  // below that number, but rounds to it
  w[4] = 0;
  std::vector<float> words = w;
  k.round_weights(words.data(), 3 * kPanel, words.data());
  for (std::size_t n = 0; n < w.size(); ++n) {
    BFloat16 got;
    std::memcpy(&got, reinterpret_cast<const std::byte*>(words.data()) + 2 * n, 2);
    EXPECT_EQ(core::to_float(got), core::rounded_weight(w[n])) << n << ": " << w[n];
  }
}

// The sums of dk and dv start from zero and are added to what is there.
TEST_F(Dot2Kernels, TransposedSumsAreTheMeaning) {
  const DotKernels<float>& k = dot2_kernels();
  const GradientKernels<float>& g = dot2_gradient_kernels();
  for (const Numbers numbers : kNumbers) {
    for (const Index width : kWidths) {
      const Rows x(kPanel, width, numbers, 6);
      std::vector<float> weights(at(kPanel * kPanel));
      std::mt19937 bits(7);
      std::normal_distribution<float> normal;
      for (float& w : weights) w = normal(bits) * (numbers == Numbers::kTiny ? 0x1p-63F : 1.0F);
      for (const Index count : kKeys) {
        std::vector<float> words(at(kPanel / 2 * kPanel), NAN), words_of(at(kPanel / 2 * width));
        g.join_rows({weights.data(), kPanel}, count, kPanel, {words.data(), kPanel});
        k.join_values(x.rows(), count, width, {words_of.data(), width});
        for (Index columns = 1; columns <= kTileRows; ++columns) {
          const Index stride = width + 1;  // numbers between rows must stay
          std::vector<float> got(at(kTileRows * stride), 0.5F), want = got;
          g.transposed_sum({words.data() + 3, kPanel}, columns, {words_of.data(), width}, count,
                           width, {got.data(), stride});
          for (Index n = 0; n < columns; ++n) {
            std::vector<float> sums(at(width));
            core::for_each_term(true, 0, count, [&](Index row) {
              const float w = core::rounded_weight(weights[at(row * kPanel + n + 3)]);
              for (Index c = 0; c < width; ++c) {
                sums[at(c)] = core::add_flushed_product(w, x(row, c), sums[at(c)]);
              }
            });
            for (Index c = 0; c < width; ++c) want[at(n * stride + c)] += sums[at(c)];
          }
          for (std::size_t n = 0; n < want.size(); ++n) {
            ASSERT_PRED2(same, got[n], want[n])
                << width << " " << columns << " " << count << " " << n;
          }
        }
      }
    }
  }
}

// Words hold rows 2m and 2m + 1; the second half is 0 if the number of rows is odd.
TEST_F(Dot2Kernels, RowsAreJoinedAndRounded) {
  const GradientKernels<float>& g = dot2_gradient_kernels();
  constexpr Index kRows = 5;
  std::vector<float> w(at(kRows * 2 * kPanel));
  std::mt19937 bits(8);
  std::uniform_real_distribution<float> exponent(-140, 3);
  for (float& x : w) x = std::exp2(exponent(bits)) * (bits() % 2 == 0 ? 1.0F : -1.0F);
  std::vector<float> words(at(3 * 2 * kPanel), NAN);
  g.join_rows({w.data(), 2 * kPanel}, kRows, 2 * kPanel, {words.data(), 2 * kPanel});
  for (Index r = 0; r < 6; ++r) {
    for (Index n = 0; n < 2 * kPanel; ++n) {
      const auto word = std::bit_cast<std::uint32_t>(words[at(r / 2 * 2 * kPanel + n)]);
      const float got = std::bit_cast<float>(r % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
      ASSERT_EQ(got, r < kRows ? core::rounded_weight(w[at(r * 2 * kPanel + n)]) : 0.0F);
    }
  }
}

TEST_F(Dot2Kernels, DotsOfRowsAreTheMeaning) {
  const DotKernels<float>& k = dot2_kernels();
  const GradientKernels<float>& g = dot2_gradient_kernels();
  constexpr Index kRows = 37;
  for (const Numbers numbers : kNumbers) {
    for (const Index width : kWidths) {
      const Rows a(kRows, width, numbers, 9), b(kRows, width, numbers, 10);
      std::vector<float> left(at(kRows * width), NAN), right = left;
      const Index words = words_of(width);
      k.widen(a.rows(), kRows, width, {left.data(), words});
      k.widen(b.rows(), kRows, width, {right.data(), words});
      for (const Index rows : {1, 15, 16, 17, 37}) {
        std::vector<float> got(at(kRows + 1), 7.0F);
        g.row_dots({left.data(), words}, {right.data(), words}, rows, width, got.data());
        for (Index r = 0; r < rows; ++r) {
          const float want = core::dot2(a.row(r, width).data(), b.row(r, width).data(), width);
          ASSERT_PRED2(same, got[at(r)], want) << width << " " << rows << " " << r;
        }
        ASSERT_EQ(got[at(rows)], 7.0F);
      }
    }
  }
}

// Either half of a word may be non-finite; words behind the last are not read.
TEST_F(Dot2Kernels, NonFiniteValuesOfWordsAreFound) {
  const GradientKernels<float>& g = dot2_gradient_kernels();
  for (const Index count : {1, 15, 16, 17, 40}) {
    std::vector<std::uint16_t> values(at(2 * count + 2), 0x7F7F);  // the largest number
    values[at(2 * count)] = 0x7F80;
    const auto finite = [&] {
      std::vector<float> words(values.size() / 2);
      std::memcpy(words.data(), values.data(), values.size() * 2);
      return g.all_finite(words.data(), count);
    };
    EXPECT_TRUE(finite()) << count;
    for (Index n = 0; n < 2 * count; ++n) {
      for (const int odd : {0x7F80, 0xFF80, 0x7FC0, 0x7F81}) {
        values[at(n)] = static_cast<std::uint16_t>(odd);
        EXPECT_FALSE(finite()) << count << " " << n;
      }
      values[at(n)] = 0x0001;
    }
    EXPECT_TRUE(finite()) << count;
  }
}

TEST_F(Dot2Kernels, CountTheirOperations) {
  EXPECT_EQ(dot2_kernels().multiply_adds(10), 10 * 24 * 16 * 4);
}

// Kernels for other types are those of avx512: identical functions, so bit-identical results.
TEST_F(Dot2Kernels, OtherKernelsAreThoseOfAvx512) {
  const auto compare = []<class T>(T) {
    const auto expect_same = [](const auto& table_of) {
      EXPECT_EQ(&table_of(Target::kAvx512Bf16), &table_of(Target::kAvx512));
    };
    expect_same(additive_kernels<T>);
    expect_same(logit_kernels<T>);
    expect_same(dot_kernels<T>);
    expect_same(gradient_kernels<T>);
    expect_same(gru_kernels<T>);
    expect_same(update_kernels<T>);
  };
  compare(float());
  compare(double());
}

}  // namespace
}  // namespace qkv::kernels
