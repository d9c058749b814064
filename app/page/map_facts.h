// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_MAP_FACTS_H_
#define QKV_PAGE_MAP_FACTS_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <qkv/view.h>

namespace qkv::app::page {

// One map, C-ordered: its numbers [Tq,Tk], and its mask, false where masked (absent: no masking).
class Map {
 public:
  // Copies the numbers, [Tq,Tk] of any real dtype, and the mask, bool [Tq,Tk] or absent.
  Map(const ConstView& numbers, const ConstView& allowed);

  Index queries() const { return queries_; }
  Index keys() const { return keys_; }
  std::span<const double> numbers() const { return numbers_; }
  std::span<const bool> allowed() const { return {allowed_.get(), allowed_ ? numbers_.size() : 0}; }
  bool is_allowed(std::size_t cell) const { return !allowed_ || allowed_[cell]; }
  // Subtracts another map from this one. The difference is masked where both maps are.
  void subtract(const Map& other);

 private:
  Index queries_ = 0;
  Index keys_ = 0;
  std::vector<double> numbers_;
  std::unique_ptr<bool[]> allowed_;
};

// The facts about a map that the overview shows.
struct MapFacts {
  double lowest = 0;     // the smallest of 0 and the unmasked finite numbers
  double highest = 0;    // the largest of 0 and the unmasked finite numbers
  double magnitude = 0;  // the largest absolute value of the unmasked finite numbers
  bool has_negative = false;
  // Means over the rows whose sum is finite and not 0.
  double entropy = 0;  // mean of -sum w ln w, in nats
  double first = 0;    // mean of the row's first number
  Index rows = 0;      // number of these rows
};

MapFacts facts_of(const Map& map);

// The most rows and columns of a thumbnail.
inline constexpr Index kThumbnailSide = 32;

// Returns a thumbnail, row by row: for each of its cells, a byte about the unmasked numbers that
// the cell covers. 0: there are none; 1: all are 0; 2: one is not finite; else 3 + 252 p, where p
// from 0 to 1 is the place of the largest in magnitude on a bar of square roots, which extends from
// -magnitude (with `signs`) or 0 to magnitude.
std::string thumbnail(const Map& map, double magnitude, bool signs);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_MAP_FACTS_H_
