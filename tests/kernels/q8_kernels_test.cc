// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/storage.h"
#include "kernels/dot_kernels.h"
#include "tests/kernels/targets.h"

// Kernels that read keys and values of q8, against those that read the same numbers as float32: to
// the bit.
namespace qkv::kernels {
namespace {

constexpr Index kNumbers = BlockQ8::kNumbers;

std::size_t at(Index n) { return static_cast<std::size_t>(n); }

// Rows of blocks of any integers and scales, and their numbers. Beyond `width`, and after the last
// row, there are blocks of NaN, which nothing may use.
struct Rows {
  Index stride;  // in numbers
  std::vector<BlockQ8> blocks;
  std::vector<float> plain;

  Rows(Index rows, Index width, Index row_stride, unsigned seed) : stride(row_stride) {
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> whole(-128, 127);
    blocks.resize(at((rows + 16) * stride / kNumbers));
    plain.resize(blocks.size() * kNumbers);
    for (std::size_t n = 0; n < blocks.size(); ++n) {
      const Index first = static_cast<Index>(n) * kNumbers;
      const bool used = first / stride < rows && first % stride < width;
      blocks[n].scale = Float16(used ? normal(bits) / 100 : std::nanf(""));
      for (std::int8_t& value : blocks[n].values) value = static_cast<std::int8_t>(whole(bits));
      for (Index c = 0; c < kNumbers; ++c) {
        plain[at(first + c)] = static_cast<float>(blocks[n].scale) * blocks[n].values[c];
      }
    }
  }
  StoredRows rows() const { return {blocks.data(), DType::kQ8, stride}; }
  RowsOf<const float> numbers() const { return {plain.data(), stride}; }
};

struct Floats {
  Index stride;
  std::vector<float> values;

  Floats(Index rows, Index row_stride, unsigned seed) : stride(row_stride) {
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (Index n = 0; n < rows * stride; ++n) values.push_back(normal(bits));
  }
  RowsOf<const float> rows() const { return {values.data(), stride}; }
};

template <class F>
void for_each_table(const F& f) {
  for_each_supported([&](Target target) { f(dot_kernels<float>(target)); });
}

constexpr Index kWidths[] = {32, 64, 96, 128, 160, 320};

// Fills what lies ahead differently from what is read: it must not matter.
std::vector<ReadAhead> aheads(const std::vector<float>& memory) {
  const auto* data = reinterpret_cast<const std::byte*>(memory.data());
  return {{}, {data, 68, 68}, {data + 5, 200, 130}};
}

TEST(Q8Kernels, ScoresHaveTheBitsOfPackedKeys) {
  constexpr Index kMostRows = 12;
  constexpr Index kMostKeys = 144;
  for_each_table([&](const DotKernels<float>& k) {
    for (const Index D : kWidths) {
      const Rows keys(kMostKeys, D, D + D % 64, 1);
      const Floats q(kMostRows, D + 1, 2);
      for (const Index count : {1, 5, 16, 17, 31, 48, 64, 80, 128}) {
        std::vector<float> panel(at(kPanel * D));
        for (const Index rows : {1, 2, 5, 6, 7, 12}) {
          std::vector<float> want(at(kMostRows * kMostKeys), 7.0F);
          for (Index n = 0; n < count; n += kPanel) {
            k.pack_panel(RowsOf<const float>{keys.plain.data() + n * keys.stride, keys.stride},
                         std::min(kPanel, count - n), D, panel.data());
            k.scores(q.rows(), rows, D, panel.data(), 0.3F, {want.data() + n, kMostKeys});
          }
          for (const ReadAhead& ahead : aheads(q.values)) {
            std::vector<float> got(at(kMostRows * kMostKeys), 7.0F);
            k.stored_scores(q.rows(), rows, D, keys.rows(), count, 0.3F, {got.data(), kMostKeys},
                            ahead);
            for (Index r = 0; r < kMostRows; ++r) {
              for (Index n = 0; n < kMostKeys; ++n) {
                if (n >= count && n < (count + 15) / 16 * 16 && r < rows) continue;  // unspecified
                const float expected = n < count ? want[at(r * kMostKeys + n)] : 7.0F;
                ASSERT_EQ(got[at(r * kMostKeys + n)], expected)
                    << D << " " << count << " " << rows << " row " << r << " key " << n;
              }
            }
          }
        }
      }
    }
  });
}

TEST(Q8Kernels, SumsHaveTheBitsOfWidenedValues) {
  constexpr Index kMostRows = 17;
  for_each_table([&](const DotKernels<float>& k) {
    for (const Index E : kWidths) {
      const Rows values(40, E, E + E % 64, 3);
      const Floats weights(kMostRows, 41, 4);
      for (const Index rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17}) {
        for (const Index count : {1, 2, 33, 40}) {
          std::vector<float> want(at(kMostRows * E), 0.5F);
          k.weighted_sum(weights.rows(), rows, values.numbers(), count, E, {want.data(), E});
          for (const ReadAhead& ahead : aheads(weights.values)) {
            std::vector<float> got(at(kMostRows * E), 0.5F);
            k.stored_sum(weights.rows(), rows, values.rows(), count, E, {got.data(), E}, ahead);
            ASSERT_EQ(got, want) << E << " " << rows << " " << count;
          }
        }
      }
    }
  });
}

TEST(Q8Kernels, PanelsAreThoseOfWidenedKeys) {
  for_each_table([&](const DotKernels<float>& k) {
    for (const Index D : kWidths) {
      const Rows keys(kPanel, D, D + D % 64, 5);
      for (const Index count : {1, 5, 16, 63, 64}) {
        std::vector<float> got(at(kPanel * D), 9.0F);
        std::vector<float> want(at(kPanel * D), 8.0F);
        k.pack_panel(keys.rows(), count, D, got.data());
        k.pack_panel(keys.numbers(), count, D, want.data());
        ASSERT_EQ(got, want) << D << " " << count;
      }
    }
  });
}

void expect_same(float got, float want, Index n) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << n;
  } else {
    ASSERT_EQ(got, want) << n;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << n;
  }
}

// Every scale: subnormal, infinite, NaN, negative; and every integer.
TEST(Q8Kernels, WideningIsThatOfSingleNumbers) {
  constexpr Index kBlocks = 1 << 16;
  std::vector<BlockQ8> all(at(kBlocks));
  for (Index n = 0; n < kBlocks; ++n) {
    BlockQ8& block = all[at(n)];
    block.scale = Float16::from_bits(static_cast<std::uint16_t>(n));
    for (Index c = 0; c < kNumbers; ++c) {
      block.values[c] = static_cast<std::int8_t>((n * 7 + c * 9) % 256 - 128);
    }
  }
  for_each_table([&](const DotKernels<float>& k) {
    // As values, and as keys of one block and of two.
    std::vector<float> got(at(kPanel * 2 * kNumbers));
    for (const Index width : {kNumbers, 2 * kNumbers}) {
      for (Index first = 0; first < kBlocks; first += kPanel * width / kNumbers) {
        const StoredRows rows{all.data() + first, DType::kQ8, width};
        const auto want = [&](Index n) { return core::load_q8(all.data() + first, n); };
        k.widen(rows, kPanel, width, {got.data(), width});
        for (Index n = 0; n < kPanel * width; ++n) expect_same(got[at(n)], want(n), first);
        k.pack_panel(rows, kPanel, width, got.data());
        for (Index n = 0; n < kPanel * width; ++n) {
          expect_same(got[at(n % width * kPanel + n / width)], want(n), first);
        }
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
