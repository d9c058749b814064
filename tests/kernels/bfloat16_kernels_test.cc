// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/bfloat16_products.h"
#include "kernels/additive_kernels.h"
#include "kernels/amx_kernels.h"
#include "kernels/dot2_kernels.h"
#include "kernels/gradient_kernels.h"
#include "kernels/gru_kernels.h"
#include "kernels/logit_kernels.h"
#include "kernels/update_kernels.h"
#include "reference/row_sums.h"
#include "tests/kernels/targets.h"

// Tests that kernels for products of BF16 are bit-identical with the definition in plain arithmetic
// (core/bfloat16_products.h), also for subnormal, huge and non-finite numbers, and for any numbers
// of channels and keys.
namespace qkv::kernels {
namespace {

using core::Products;

// The parameter is a target with products of BF16.
class BFloat16Kernels : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "this CPU has no " << name_of(GetParam());
  }
  static Products products() {
    return has_amx_products(GetParam()) ? Products::kAmx : Products::kDot2;
  }
  static const DotKernels<float>& dot_table() {
    return has_amx_products(GetParam()) ? amx_kernels(GetParam()) : dot2_kernels();
  }
  static const GradientKernels<float>& gradient_table() {
    return has_amx_products(GetParam()) ? amx_gradient_kernels(GetParam())
                                        : dot2_gradient_kernels();
  }
  // Returns the most rows to sum at once. AMX has no limit: 19 rows are a tile of 16 and 3 more.
  static Index most_rows() { return products() == Products::kAmx ? 19 : kTileRows; }
  // Returns the product of two rows of n numbers by its definition.
  static float dot(const std::vector<float>& a, const std::vector<float>& b, Index n) {
    return products() == Products::kAmx ? core::amx_dot(a.data(), b.data(), n)
                                        : core::dot2(a.data(), b.data(), n);
  }
  // Adds the sum of weight(n) row(n) over n = 0 .. count - 1 to `to` [width] by the definition of
  // sums of rows.
  template <class Weight>
  static void add_rows(Index count, Index width, const Weight& weight, const auto& row, float* to) {
    std::vector<float> chains(at(2 * width));
    reference::RowSums<float> sums(products(), chains.data(), width);
    sums.begin(0, to);
    core::for_each_term(products(), 0, count,
                        [&](Index n) { sums.add(n, weight(n), row(n).data()); });
    sums.end();
  }
};

INSTANTIATE_TEST_SUITE_P(Target, BFloat16Kernels,
                         testing::Values(Target::kAvx512Bf16, Target::kAmx, Target::kEmulatedAmx),
                         [](const auto& target) {
                           std::string name(name_of(target.param));
                           std::erase(name, '-');
                           return name;
                         });

// kPlain: normally distributed numbers. kAnyBits: one in seven of these has random bits instead.
// kTiny: numbers of size 2^-64, whose products are near 2^-126, the smallest normal number.
enum class Numbers { kPlain, kAnyBits, kTiny };
constexpr Numbers kNumbers[] = {Numbers::kPlain, Numbers::kAnyBits, Numbers::kTiny};

// Rows of BF16 numbers, each followed by 3 NaNs, which no kernel may use.
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
      if (numbers == Numbers::kAnyBits && bits() % 7 == 0) {
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

constexpr Index kWidths[] = {1,  2,  3,  15, 16, 17,  31,  32,  33,
                             40, 63, 64, 65, 96, 127, 128, 200, 257};
constexpr Index kKeys[] = {1, 2, 15, 16, 17, 33, 63, 64};
// Weighted sums of rows: the widths of rows, and the numbers of rows that are summed.
constexpr Index kSumWidths[] = {1, 3, 16, 17, 32, 33, 65, 128, 257};
constexpr Index kTerms[] = {1, 2, 17, 32, 33, 64, 65, 127, 128};
constexpr Index kMostTerms = 128;

TEST_P(BFloat16Kernels, ScoresMatchTheirDefinition) {
  const DotKernels<float>& k = dot_table();
  constexpr Index kMostRows = 33;
  const std::byte* const any = reinterpret_cast<const std::byte*>(&k);  // is prefetched
  for (const Numbers numbers : kNumbers) {
    for (const Index D : kWidths) {
      const Rows q(kMostRows, D, numbers, 1);
      const Rows keys(kPanel, D, numbers, 2);
      std::vector<float> words(at(kMostRows * D), NAN);
      k.widen(q.rows(), kMostRows, D, {words.data(), D});
      std::vector<float> wants;
      for (Index r = 0; r < kMostRows; ++r) {
        for (Index n = 0; n < kPanel; ++n) {
          wants.push_back(0.3F * dot(q.row(r, D), keys.row(n, D), D));
        }
      }
      for (const Index count : kKeys) {
        std::vector<float> panel(at(kPanel * D));
        k.pack_panel(keys.rows(), count, D, panel.data());
        for (const Index rows : {1, 2, 6, 7, 8, 9, 12, 16, 17, 33}) {
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

// Each score is a product of 2^-126 or a little more, from which most trials subtract a small
// product. A result is tiny, and so 0, if it would stay below 2^-126 when rounded to 24 bits.
TEST_P(BFloat16Kernels, TinyResultsAreFoundAfterRoundingTo24Bits) {
  const DotKernels<float>& k = dot_table();
  const std::byte* const any = reinterpret_cast<const std::byte*>(&k);
  std::mt19937 random(5);
  const auto number = [](int exponent, unsigned fraction, bool negative) {
    return BFloat16::from_bits(static_cast<std::uint16_t>(
        (negative ? 0x8000U : 0U) | static_cast<unsigned>(exponent + 127) << 7 | (fraction & 127)));
  };
  int tiny = 0;
  int rounded_up = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    // Channel 0, whose product is the larger one, is added before channel 2. The others are 0.
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
      std::vector<float> a(4), b(4);
      for (std::size_t c = 0; c < 4; ++c) {
        a[c] = core::to_float(q[c]);
        b[c] = core::to_float(keys[at(4 * n) + c]);
      }
      const float want = dot(a, b, 4);
      ASSERT_PRED2(same, stored[at(n)], want) << trial << " " << n;
      tiny += want == 0 ? 1 : 0;
      rounded_up += want == 0x1p-126F && a[2] < 0 ? 1 : 0;
    }
  }
  EXPECT_GT(tiny, 100);
  EXPECT_GT(rounded_up, 100);
}

TEST_P(BFloat16Kernels, SumsMatchTheirDefinition) {
  const DotKernels<float>& k = dot_table();
  for (const Numbers numbers : kNumbers) {
    for (const Index E : kSumWidths) {
      const Rows v(kMostTerms, E, numbers, 3);
      const Index width = (E + 15) / 16 * 16;
      std::vector<float> weights(at(most_rows() * kMostTerms));
      std::mt19937 bits(4);
      std::uniform_real_distribution<float> some(0, 1);
      for (float& w : weights) w = numbers == Numbers::kTiny ? some(bits) * 0x1p-63F : some(bits);
      for (const Index count : kTerms) {
        std::vector<float> words = weights;
        for (Index r = 0; r < most_rows(); ++r) {
          float* row = words.data() + r * kMostTerms;
          std::fill(row + count, row + kMostTerms, 0.0F);
          k.round_weights(row, kMostTerms, row);
        }
        std::vector<float> words_of(at(kMostTerms / 2 * E));
        k.join_values(v.rows(), count, E, {words_of.data(), E});
        for (Index rows = 1; rows <= most_rows(); rows += rows < 6 ? 1 : 5) {
          std::vector<float> got(at(most_rows() * width), 0.5F), stored = got, want = got;
          k.weighted_sum({words.data(), kMostTerms}, rows, {words_of.data(), E}, count, E,
                         {got.data(), width});
          k.stored_sum({words.data(), kMostTerms}, rows, v.rows(), count, E, {stored.data(), width},
                       {});
          for (Index r = 0; r < rows; ++r) {
            add_rows(
                count, E, [&](Index n) { return weights[at(r * kMostTerms + n)]; },
                [&](Index n) { return v.row(n, E); }, want.data() + r * width);
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

// Weights are rounded to nearest, ties to even, and subnormal ones to 0. The result may replace the
// weights, may begin before them and overlap them, or may be in other memory.
TEST_P(BFloat16Kernels, WeightsAreRoundedOnce) {
  const DotKernels<float>& k = dot_table();
  std::vector<float> w(3 * kPanel);
  std::mt19937 bits(5);
  std::uniform_real_distribution<float> exponent(-140, 0);
  for (float& x : w) x = std::exp2(exponent(bits));
  w[0] = 1 + 0x1p-8F;       // a tie, to even
  w[1] = 1 + 0x3p-8F;       // a tie, to even, upwards
  w[2] = 0x1p-126F;         // the smallest that does not become 0
  w[3] = 0x1.FFFFFCp-127F;  // the largest that does
  w[4] = 0;
  const auto expect_rounded = [&](const float* words, const char* where) {
    for (std::size_t n = 0; n < w.size(); ++n) {
      BFloat16 got;
      std::memcpy(&got, reinterpret_cast<const std::byte*>(words) + 2 * n, 2);
      EXPECT_EQ(core::to_float(got), core::rounded_weight(w[n]))
          << where << ", " << n << ": " << w[n];
    }
  };
  std::vector<float> words = w;
  k.round_weights(words.data(), 3 * kPanel, words.data());
  expect_rounded(words.data(), "in place");
  std::vector<float> other(w.size(), 7);
  k.round_weights(w.data(), 3 * kPanel, other.data());
  expect_rounded(other.data(), "to other memory");
  for (std::size_t n = w.size() / 2; n < other.size(); ++n) EXPECT_EQ(other[n], 7) << n;
  std::vector<float> shared(at(kPanel / 2));
  shared.insert(shared.end(), w.begin(), w.end());
  k.round_weights(shared.data() + kPanel / 2, 3 * kPanel, shared.data());
  expect_rounded(shared.data(), "overlapping");
}

// A sum of transposed_sum(), as for dk or dv, starts from zero, and is added to the previous
// contents at the end.
TEST_P(BFloat16Kernels, TransposedSumsMatchTheirDefinition) {
  const DotKernels<float>& k = dot_table();
  const GradientKernels<float>& g = gradient_table();
  for (const Numbers numbers : kNumbers) {
    for (const Index width : kSumWidths) {
      const Rows x(kMostTerms, width, numbers, 6);
      std::vector<float> weights(at(kMostTerms * kPanel));
      std::mt19937 bits(7);
      std::normal_distribution<float> normal;
      for (float& w : weights) w = normal(bits) * (numbers == Numbers::kTiny ? 0x1p-63F : 1.0F);
      for (const Index count : kTerms) {
        std::vector<float> words(at(kMostTerms / 2 * kPanel), NAN),
            words_of(at(kMostTerms / 2 * width));
        g.join_rows({weights.data(), kPanel}, count, kPanel, {words.data(), kPanel});
        k.join_values(x.rows(), count, width, {words_of.data(), width});
        for (Index columns = 1; columns <= most_rows(); columns += columns < 6 ? 1 : 5) {
          const Index stride = width + 1;  // numbers between rows must stay
          std::vector<float> got(at(most_rows() * stride), 0.5F), want = got;
          g.transposed_sum({words.data() + 3, kPanel}, columns, {words_of.data(), width}, count,
                           width, {got.data(), stride});
          for (Index n = 0; n < columns; ++n) {
            std::vector<float> sums(at(width));
            add_rows(
                count, width, [&](Index row) { return weights[at(row * kPanel + n + 3)]; },
                [&](Index row) { return x.row(row, width); }, sums.data());
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

// A word in row m of the result holds a number of row 2m and, in its upper half, one of row 2m + 1,
// or 0 if there is no such row.
TEST_P(BFloat16Kernels, RowsAreJoinedAndRounded) {
  const GradientKernels<float>& g = gradient_table();
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

TEST_P(BFloat16Kernels, DotsOfRowsMatchTheirDefinition) {
  const DotKernels<float>& k = dot_table();
  const GradientKernels<float>& g = gradient_table();
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
          const float want = dot(a.row(r, width), b.row(r, width), width);
          ASSERT_PRED2(same, got[at(r)], want) << width << " " << rows << " " << r;
        }
        ASSERT_EQ(got[at(rows)], 7.0F);
      }
    }
  }
}

// Either half of a word may be non-finite; words beyond the count are not read.
TEST_P(BFloat16Kernels, NonFiniteValuesOfWordsAreFound) {
  const GradientKernels<float>& g = gradient_table();
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
      for (const int non_finite : {0x7F80, 0xFF80, 0x7FC0, 0x7F81}) {
        values[at(n)] = static_cast<std::uint16_t>(non_finite);
        EXPECT_FALSE(finite()) << count << " " << n;
      }
      values[at(n)] = 0x0001;
    }
    EXPECT_TRUE(finite()) << count;
  }
}

// With AMX, a round is 4 products of tiles, each 16 x 16 sums of 32 terms; else it is 24
// instructions, each 16 sums of 2 terms. A term is two operations.
TEST_P(BFloat16Kernels, OperationsAreCounted) {
  const double want = products() == Products::kAmx ? 10 * 4 * 16 * 16 * 32 * 2 : 10 * 24 * 16 * 4;
  EXPECT_EQ(dot_table().multiply_adds(10), want);
}

// All other kernels of the target are those of avx512, so that results are bit-identical.
TEST_P(BFloat16Kernels, OthersAreThoseOfAvx512) {
  const auto compare = [&]<class T>(T) {
    const auto expect_same = [&](const auto& table_of) {
      EXPECT_EQ(&table_of(GetParam()), &table_of(Target::kAvx512));
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
