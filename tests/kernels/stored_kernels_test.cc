// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/storage.h"
#include "kernels/dot_kernels.h"
#include "tests/kernels/targets.h"

// Kernels that read keys and values as they are stored are bit-identical with those that read
// packed or widened ones.
namespace qkv::kernels {
namespace {

// An accumulator type and a storage type, with the sizes to test.
template <class Sum, class Store>
struct Stored {
  using T = Sum;
  using Element = Store;
  static constexpr DType kDType = dtype_of<Store>;
  static constexpr Index kNumbers = 1;  // numbers per element
  static constexpr Index kWidths[] = {1,  3,  4,  7,  8,  15, 16, 17,  31,
                                      32, 40, 63, 64, 65, 80, 96, 128, 200};
  static constexpr Index kKeys[] = {1, 5, 16, 17, 31, 48, 64};
  static constexpr Index kRowsOfScores[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
  static constexpr Index kRowsOfSums[] = {1, 2, 3, 4, 5, 6};
  static constexpr Index kAhead = 64;                   // bytes to prefetch of each row
  static constexpr Index kWidenedWidths[] = {1021, 3};  // not whole registers
  static constexpr Index kPackedWidths[] = {16};

  static Index pad(Index width) { return width % 2 * 3; }
  static Store element(double value, std::mt19937&) {
    return core::from_accumulator<Store>(static_cast<T>(value));
  }
  static T number(const Store* data, Index n) { return core::to_accumulator<T>(data[n]); }
  // Returns the n-th of all 2^16 numbers of 16 bits, or of 2^16 numbers of a wider type.
  static Store any(Index n) {
    if constexpr (sizeof(Store) == 2) {
      return Store::from_bits(static_cast<std::uint16_t>(n));
    } else {
      return static_cast<Store>(n - 32768) / 7;
    }
  }
};

template <>
struct Stored<float, BlockQ8> {
  using T = float;
  using Element = BlockQ8;
  static constexpr DType kDType = DType::kQ8;
  static constexpr Index kNumbers = BlockQ8::kNumbers;
  static constexpr Index kWidths[] = {32, 64, 96, 128, 160, 320};
  static constexpr Index kKeys[] = {1, 5, 16, 17, 31, 48, 64, 80, 128};
  static constexpr Index kRowsOfScores[] = {1, 2, 5, 6, 7, 12};
  static constexpr Index kRowsOfSums[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17};
  static constexpr Index kAhead = 68;
  static constexpr Index kWidenedWidths[] = {kNumbers, 2 * kNumbers};
  static constexpr Index kPackedWidths[] = {kNumbers, 2 * kNumbers};

  static Index pad(Index width) { return width % 64; }
  static BlockQ8 element(double value, std::mt19937& bits) {
    std::uniform_int_distribution<int> whole(-128, 127);
    BlockQ8 block;
    block.scale = Float16(static_cast<float>(value) / 100);
    for (std::int8_t& x : block.values) x = static_cast<std::int8_t>(whole(bits));
    return block;
  }
  static float number(const BlockQ8* data, Index n) {
    const BlockQ8& block = data[n / kNumbers];
    const auto scale = static_cast<float>(block.scale);
    // Zeros have no sign: -0 becomes +0.
    return std::isfinite(scale) ? scale * block.values[n % kNumbers] + 0.0F : std::nanf("");
  }
  // Returns the n-th of 2^16 blocks. Together they have every scale (also subnormal, infinite, NaN,
  // negative) and every 8-bit integer.
  static BlockQ8 any(Index n) {
    BlockQ8 block;
    block.scale = Float16::from_bits(static_cast<std::uint16_t>(n));
    for (Index c = 0; c < kNumbers; ++c) {
      block.values[c] = static_cast<std::int8_t>((n * 7 + c * 9) % 256 - 128);
    }
    return block;
  }
};

// Random numbers of a storage type in rows, `stored`, and the same numbers as T, `plain`. Elements
// beyond `width` and behind the last row are NaN, which no kernel may use.
template <class As>
struct Rows {
  using T = typename As::T;
  Index stride;
  std::vector<typename As::Element> stored;
  std::vector<T> plain;

  Rows(Index rows, Index width, Index row_stride, unsigned seed)
      : stride(row_stride),
        stored(at((rows + 16) * stride / As::kNumbers)),
        plain(stored.size() * As::kNumbers) {
    std::mt19937 bits(seed);
    std::normal_distribution<double> normal;
    for (std::size_t n = 0; n < stored.size(); ++n) {
      const Index first = static_cast<Index>(n) * As::kNumbers;
      const bool is_used = first / stride < rows && first % stride < width;
      stored[n] = As::element(is_used ? normal(bits) : std::nan(""), bits);
    }
    for (std::size_t n = 0; n < plain.size(); ++n) {
      plain[n] = As::number(stored.data(), static_cast<Index>(n));
    }
  }
  StoredRows rows() const { return {stored.data(), As::kDType, stride}; }
  RowsOf<const T> widened(Index row = 0) const { return {plain.data() + row * stride, stride}; }
};

template <class As>
class StoredKernels : public testing::Test {
 protected:
  using Sum = typename As::T;
  using Plain = Rows<Stored<Sum, Sum>>;
  template <class F>
  static void for_each_target(const F& f) {
    for_each_supported([&](Target target) { f(dot_kernels<Sum>(target)); });
  }
  static Rows<As> rows(Index count, Index width, unsigned seed) {
    return Rows<As>(count, width, width + As::pad(width), seed);
  }
  // Returns rows to prefetch, of several sizes and none: prefetching must not affect results.
  static std::vector<ReadAhead> aheads(const Plain& memory) {
    const auto* data = reinterpret_cast<const std::byte*>(memory.stored.data());
    return {{}, {data, As::kAhead, As::kAhead}, {data, 1, 3}, {data + 5, 200, 130}};
  }
  static void expect_same(Sum got, Sum want, Index n) {
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << n;
    } else {
      ASSERT_EQ(got, want) << n;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << n;
    }
  }
};
using Types = testing::Types<Stored<float, float>, Stored<float, BFloat16>, Stored<float, Float16>,
                             Stored<double, double>, Stored<float, BlockQ8>>;
TYPED_TEST_SUITE(StoredKernels, Types);

TYPED_TEST(StoredKernels, ScoresHaveTheBitsOfPackedKeys) {
  using T = typename TypeParam::T;
  constexpr Index kMostRows = *std::rbegin(TypeParam::kRowsOfScores);
  constexpr Index kMostKeys = *std::rbegin(TypeParam::kKeys) + 16;
  this->for_each_target([&](const DotKernels<T>& k) {
    for (const Index D : TypeParam::kWidths) {
      const auto keys = this->rows(kMostKeys, D, 1);
      const typename TestFixture::Plain q(kMostRows, D, D + 1, 2);
      for (const Index count : TypeParam::kKeys) {
        std::vector<T> panel(at(kPanel * D));
        for (const Index rows : TypeParam::kRowsOfScores) {
          std::vector<T> want(at(kMostRows * kMostKeys), T(7));
          for (Index n = 0; n < count; n += kPanel) {
            k.pack_panel(keys.widened(n), std::min(kPanel, count - n), D, panel.data());
            k.scores(q.widened(), rows, D, panel.data(), T(0.3), {want.data() + n, kMostKeys});
          }
          for (const ReadAhead& ahead : this->aheads(q)) {
            std::vector<T> got(at(kMostRows * kMostKeys), T(7));
            k.stored_scores(q.widened(), rows, D, keys.rows(), count, T(0.3),
                            {got.data(), kMostKeys}, ahead);
            for (Index r = 0; r < kMostRows; ++r) {
              for (Index n = 0; n < kMostKeys; ++n) {
                if (n >= count && n < (count + 15) / 16 * 16 && r < rows) continue;  // unspecified
                const T expected = n < count ? want[at(r * kMostKeys + n)] : T(7);
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

TYPED_TEST(StoredKernels, SumsHaveTheBitsOfWidenedValues) {
  using T = typename TypeParam::T;
  constexpr Index kMostRows = *std::rbegin(TypeParam::kRowsOfSums);
  this->for_each_target([&](const DotKernels<T>& k) {
    for (const Index E : TypeParam::kWidths) {
      const auto values = this->rows(40, E, 3);
      const typename TestFixture::Plain weights(kMostRows, 40, 41, 4);
      const Index width = (E + 15) / 16 * 16;
      for (const Index rows : TypeParam::kRowsOfSums) {
        for (const Index count : {1, 2, 33, 40}) {
          std::vector<T> want(at(kMostRows * width), T(0.5));
          k.weighted_sum(weights.widened(), rows, values.widened(), count, E, {want.data(), width});
          for (const ReadAhead& ahead : this->aheads(weights)) {
            std::vector<T> got(at(kMostRows * width), T(0.5));
            k.stored_sum(weights.widened(), rows, values.rows(), count, E, {got.data(), width},
                         ahead);
            ASSERT_EQ(got, want) << E << " " << rows << " " << count;
          }
        }
      }
    }
  });
}

TYPED_TEST(StoredKernels, PanelsAreThoseOfWidenedKeys) {
  using T = typename TypeParam::T;
  this->for_each_target([&](const DotKernels<T>& k) {
    for (const Index D : TypeParam::kWidths) {
      const auto keys = this->rows(kPanel, D, 5);
      for (const Index count : {1, 5, 16, 63, 64}) {
        std::vector<T> got(at(kPanel * D), T(9));
        k.pack_panel(keys.rows(), count, D, got.data());
        for (Index c = 0; c < D; ++c) {
          for (Index n = 0; n < kPanel; ++n) {
            const T want = n < count ? keys.plain[at(n * keys.stride + c)] : T(0);
            ASSERT_EQ(got[at(c * kPanel + n)], want) << D << " " << count;
          }
        }
      }
    }
  });
}

TYPED_TEST(StoredKernels, WideningIsThatOfSingleNumbers) {
  using T = typename TypeParam::T;
  using Element = typename TypeParam::Element;
  constexpr Index kNumbers = TypeParam::kNumbers;
  constexpr Index kCount = kNumbers << 16;
  std::vector<Element> all;
  std::vector<T> wants;
  for (Index n = 0; n < kCount / kNumbers; ++n) all.push_back(TypeParam::any(n));
  for (Index n = 0; n < kCount; ++n) wants.push_back(TypeParam::number(all.data(), n));
  const auto rows = [&](Index first, Index width) {
    return StoredRows{all.data() + first / kNumbers, TypeParam::kDType, width};
  };
  this->for_each_target([&](const DotKernels<T>& k) {
    std::vector<T> got(1 << 16);
    for (const Index width : TypeParam::kWidenedWidths) {
      const Index count = (1 << 16) / width;
      for (Index first = 0; first + count * width <= kCount; first += count * width) {
        k.widen(rows(first, width), count, width, {got.data(), width});
        for (Index n = 0; n < count * width; ++n) {
          this->expect_same(got[at(n)], wants[at(first + n)], first + n);
        }
        if (this->HasFatalFailure()) return;
      }
    }
    // pack_panel() widens, too.
    for (const Index width : TypeParam::kPackedWidths) {
      for (Index first = 0; first < kCount; first += kPanel * width) {
        k.pack_panel(rows(first, width), kPanel, width, got.data());
        for (Index n = 0; n < kPanel * width; ++n) {
          this->expect_same(got[at(n % width * kPanel + n / width)], wants[at(first + n)],
                            first + n);
        }
        if (this->HasFatalFailure()) return;
      }
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
