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
  // Copies a view [Tq,Tk] of any real dtype, and the mask's view or none.
  Map(const ConstView& numbers, const ConstView& allowed);

  Index queries() const { return queries_; }
  Index keys() const { return keys_; }
  std::span<const double> numbers() const { return numbers_; }
  std::span<const bool> allowed() const { return {allowed_.get(), allowed_ ? numbers_.size() : 0}; }
  bool is_allowed(std::size_t cell) const { return !allowed_ || allowed_[cell]; }
  // Makes this map its difference from another, masked where both are.
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
  double magnitude = 0;  // the largest |w| of all finite numbers that are not masked
  bool has_negative = false;
  // Means over the rows whose sum is finite and not 0: -sum w ln w in nats, and the first number.
  double entropy = 0;
  double first = 0;
  Index rows = 0;  // number of those rows
};

MapFacts facts_of(const Map& map);

// The most rows and columns of a thumbnail.
inline constexpr Index kThumbnailSide = 32;

// A thumbnail: a byte for each cell, for the largest in magnitude of the unmasked numbers that the
// cell covers. 0: all are masked; 1: all are 0; 2: one is not finite; else 3 + 252 p for the
// number's place p on a bar of square roots, from -magnitude (with `signs`) or 0 to magnitude.
std::string thumbnail(const Map& map, double magnitude, bool signs);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_MAP_FACTS_H_
