// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RANKS_EXACT_SUMS_H_
#define QKV_RANKS_EXACT_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <qkv/dtype.h>
#include <qkv/export.h>
#include <qkv/ranks.h>
#include <qkv/view.h>

namespace qkv::ranks {

// An array of sums whose bits do not depend on the order in which terms are added: a sum is a
// fixed-point number that holds up to 2^30 terms exactly (Kulisch 2013, "Computer arithmetic and
// validity", complete arithmetic). It takes 104 bytes, or 560 if terms are float64.
class QKV_API ExactSums {
 public:
  // `dtype`: the real type of the terms.
  ExactSums(DType dtype, Index count);

  Index count() const noexcept { return count_; }
  void add(Index n, double term);
  // Adds a term to each sum, or to some; `terms` is C-ordered.
  void add(const ConstView& terms);
  void add(std::span<const Index> sums, const ConstView& terms);
  // Adds the sums of all ranks, on every rank. Collective.
  void add_ranks(Ranks& ranks);
  // A sum, with an error of at most one unit in the last place.
  double operator[](Index n) const;

 private:
  std::int64_t* digits_of(Index n) { return digits_.data() + n * stride(); }
  const std::int64_t* digits_of(Index n) const { return digits_.data() + n * stride(); }
  // The digits of a sum, and the bits of a float64 that is 0, or the sum of its infinite and NaN
  // terms.
  Index stride() const { return size_ + 1; }

  Index count_ = 0;
  Index size_ = 0;  // digits of a sum, of 32 bits each; a digit may temporarily exceed them
  int low_ = 0;     // a unit of the first digit is 2^low_
  std::vector<std::int64_t> digits_{};
};

}  // namespace qkv::ranks

#endif  // QKV_RANKS_EXACT_SUMS_H_
