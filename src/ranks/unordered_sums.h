// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RANKS_UNORDERED_SUMS_H_
#define QKV_RANKS_UNORDERED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <qkv/export.h>
#include <qkv/ranks.h>
#include <qkv/view.h>

namespace qkv::ranks {

// An array of sums whose bits do not depend on the order in which terms are added (as in Demmel and
// Nguyen 2015, "Parallel reproducible summation"). The digits of a number have fixed places, each
// digit is a sum of integers, and a sum keeps kDigits digits, from the highest of its largest term
// down: the error of n <= 2^30 terms is below n 2^-83 of that term.
class QKV_API UnorderedSums {
 public:
  explicit UnorderedSums(Index count);

  Index count() const noexcept { return static_cast<Index>(sums_.size()); }
  void add(Index n, double term);
  // Adds a term to each sum, or to each of the sums numbered in `sums`. `terms` is C-ordered.
  void add(const ConstView& terms);
  void add(std::span<const Index> sums, const ConstView& terms);
  // Adds up the sums of all ranks; every rank receives the totals. Collective.
  void add_ranks(Ranks& ranks);
  // Returns sum n, rounded with an error of at most one unit in the last place.
  double operator[](Index n) const;

 private:
  static constexpr int kDigits = 4;
  struct Sum {
    std::int64_t digits[kDigits] = {};  // ascending; of 32 bits, but carries are not yet made
    std::int32_t lowest = 0;            // the place of the first digit
    bool has_infinity[2] = {};          // whether a term was +inf, or -inf
    bool has_nan = false;
  };
  static void drop_below(Sum& sum, int lowest);

  std::vector<Sum> sums_{};
};

}  // namespace qkv::ranks

#endif  // QKV_RANKS_UNORDERED_SUMS_H_
