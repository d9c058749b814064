// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/storage.h"
#include "kernels/dot_kernels.h"
#include "tests/kernels/targets.h"

// Kernels that read keys and values as they are stored, against those that read packed or widened
// ones: to the bit.
namespace qkv::kernels {
namespace {

std::size_t at(Index n) { return static_cast<std::size_t>(n); }

// Rows of random numbers of a storage type, and the same numbers as T. Beyond `width`, rows have
// NaN, which nothing may read.
template <class T, class Stored>
struct Rows {
  Index stride;
  std::vector<Stored> stored;
  std::vector<T> plain;

  Rows(Index rows, Index width, Index row_stride, unsigned seed)
      : stride(row_stride), stored(at(rows * stride)), plain(at(rows * stride)) {
    std::mt19937 bits(seed);
    std::normal_distribution<double> normal;
    for (Index n = 0; n < rows * stride; ++n) {
      const double value = n % stride < width ? normal(bits) : std::nan("");
      stored[at(n)] = core::from_accumulator<Stored>(static_cast<T>(value));
      plain[at(n)] = core::to_accumulator<T>(stored[at(n)]);
    }
  }
  StoredRows rows() const { return {stored.data(), dtype_of<Stored>, stride}; }
  RowsOf<const T> widened() const { return {plain.data(), stride}; }
};

template <class T, class F>
void for_each_target(const F& f) {
  for_each_supported([&](Target target) { f(dot_kernels<T>(target)); });
}

// A type of sums and one of storage.
template <class Sum, class Store>
struct Pair {
  using T = Sum;
  using Stored = Store;
};

template <class P>
class StoredKernels : public testing::Test {};
using Pairs = testing::Types<Pair<float, float>, Pair<float, BFloat16>, Pair<float, Float16>,
                             Pair<double, double>>;
TYPED_TEST_SUITE(StoredKernels, Pairs);

constexpr Index kWidths[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 40, 63, 64, 65, 80, 96, 128, 200};
constexpr Index kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};

// Fills what lies ahead differently from what is read: it must not matter.
template <class T>
std::vector<ReadAhead> aheads(const std::vector<T>& memory) {
  const auto* data = reinterpret_cast<const std::byte*>(memory.data());
  return {{}, {data, 64, 64}, {data, 1, 3}, {data + 5, 200, 130}};
}

TYPED_TEST(StoredKernels, ScoresHaveTheBitsOfPackedKeys) {
  using T = typename TypeParam::T;
  using Stored = typename TypeParam::Stored;
  constexpr Index kMostRows = 16;
  constexpr Index kMostKeys = 80;
  for_each_target<T>([&](const DotKernels<T>& k) {
    for (const Index D : kWidths) {
      const Rows<T, Stored> keys(kMostKeys, D, D + (D % 2) * 3, 1);
      const Rows<T, T> q(kMostRows, D, D + 1, 2);
      for (const Index count : {1, 5, 16, 17, 31, 48, 64}) {
        std::vector<T> panel(at(kPanel * D));
        k.pack_panel(keys.widened(), count, D, panel.data());
        for (const Index rows : kRowCounts) {
          std::vector<T> want(at(kMostRows * kMostKeys), T(7));
          k.scores(q.widened(), rows, D, panel.data(), T(0.3), {want.data(), kMostKeys});
          for (const ReadAhead& ahead : aheads(q.stored)) {
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
  using Stored = typename TypeParam::Stored;
  for_each_target<T>([&](const DotKernels<T>& k) {
    for (const Index E : kWidths) {
      const Rows<T, Stored> values(40, E, E + (E % 2) * 3, 3);
      const Rows<T, T> weights(kTileRows, 40, 41, 4);
      const Index width = (E + 15) / 16 * 16;
      for (Index rows = 1; rows <= kTileRows; ++rows) {
        for (const Index count : {1, 2, 33, 40}) {
          std::vector<T> want(at(kTileRows * width), T(0.5));
          k.weighted_sum(weights.widened(), rows, values.widened(), count, E, {want.data(), width});
          for (const ReadAhead& ahead : aheads(weights.stored)) {
            std::vector<T> got(at(kTileRows * width), T(0.5));
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
  using Stored = typename TypeParam::Stored;
  for_each_target<T>([&](const DotKernels<T>& k) {
    for (const Index D : kWidths) {
      const Rows<T, Stored> keys(kPanel, D, D + (D % 2) * 3, 5);
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

// Every number of 16 bits; as many others of a wider type.
template <class Stored>
Stored number(Index n) {
  if constexpr (sizeof(Stored) == 2) {
    return Stored::from_bits(static_cast<std::uint16_t>(n));
  } else {
    return static_cast<Stored>(n - 32768) / 7;
  }
}

template <class T>
void expect_same(T got, T want, Index n) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << n;
  } else {
    ASSERT_EQ(got, want) << n;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << n;
  }
}

TYPED_TEST(StoredKernels, WideningIsThatOfSingleValues) {
  using T = typename TypeParam::T;
  using Stored = typename TypeParam::Stored;
  constexpr Index kCount = 1 << 16;
  std::vector<Stored> all(at(kCount));
  for (Index n = 0; n < kCount; ++n) all[at(n)] = number<Stored>(n);
  for_each_target<T>([&](const DotKernels<T>& k) {
    // In rows whose last register is not whole.
    std::vector<T> got(at(kCount));
    for (Index width : {1021, 3}) {
      k.widen({all.data(), dtype_of<Stored>, width}, kCount / width, width, {got.data(), width});
      for (Index n = 0; n < kCount / width * width; ++n) {
        expect_same(got[at(n)], core::to_accumulator<T>(all[at(n)]), n);
      }
    }
    // As keys.
    std::vector<T> panel(at(kPanel * 16));
    for (Index first = 0; first < kCount; first += 1024) {
      k.pack_panel({all.data() + first, dtype_of<Stored>, 16}, kPanel, 16, panel.data());
      for (Index n = 0; n < 1024; ++n) {
        expect_same(panel[at(n % 16 * kPanel + n / 16)],
                    core::to_accumulator<T>(all[at(first + n)]), first + n);
      }
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
