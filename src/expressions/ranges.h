// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_RANGES_H_
#define QKV_EXPRESSIONS_RANGES_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "expressions/indices.h"

// Interval arithmetic: the ranges of the integers of a program.
namespace qkv::expressions {

inline constexpr std::int64_t kLeastInteger = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int64_t kLargestInteger = std::numeric_limits<std::int32_t>::max();

// The integers low .. high, within 32 bits.
struct Range {
  std::int64_t low = kLeastInteger;
  std::int64_t high = kLargestInteger;

  bool contains(std::int64_t x) const { return low <= x && x <= high; }
};

// Finds the ranges of all integers and truth values of a program.
class Ranges {
 public:
  // Reads the captured integers. Throws Error of `function` about `argument` if one does not fit in
  // 32 bits.
  Ranges(std::string_view function, std::string_view argument, const Program& program);

  // Prepares find() to look only at those elements of arrays that its pairs can read. Without this
  // call, find() uses the ranges of whole arrays.
  void index_arrays();
  // Computes the ranges for these pairs.
  void find(const Pairs& pairs);
  const Program& program() const noexcept { return *program_; }
  const Range& operator[](int step) const { return ranges_[static_cast<std::size_t>(step)]; }

 private:
  // The elements of an array, integers or truth values, and the ranges of blocks of kBlock elements
  // along its last axis.
  struct IndexedArray {
    static constexpr Index kBlock = 64;
    const detail::CapturedArray* array = nullptr;
    std::vector<Range> blocks{};  // [lines along the last axis][blocks]
    Range all{};

    explicit IndexedArray(const detail::CapturedArray& of);
    // The range of the elements whose indices lie in `box`, which has a range for each axis.
    Range range_in(std::span<const Range> box) const;
  };

  Range range_of(const Step& x, const Pairs& pairs) const;
  Range range_of_element(const Step& x, const Range& of_all) const;

  const Program* program_;
  std::vector<Range> ranges_;
  std::vector<Range> of_arrays_;  // by step: of the whole array of integers that it reads
  std::vector<IndexedArray> indexed_;
};

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_RANGES_H_
