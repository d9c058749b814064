// SPDX-License-Identifier: Apache-2.0
#include "expressions/ranges.h"

#include <algorithm>
#include <array>

#include <qkv/error.h>

#include "core/integers.h"
#include "core/message.h"
#include "core/storage.h"

namespace qkv::expressions {
namespace {

// The range low .. high of results; all integers if a result would wrap around.
Range unwrapped(std::int64_t low, std::int64_t high) {
  if (low < kLeastInteger || high > kLargestInteger) return {};
  return {low, high};
}

template <class F>
Range of_corners(const Range& a, const Range& b, const F& f) {
  const std::array corners{f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)};
  const auto [low, high] = std::minmax_element(corners.begin(), corners.end());
  return unwrapped(*low, *high);
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Range divided(const Range& a, const Range& b) {
  if (b.contains(0)) return {};
  return of_corners(a, b, floor_divided);
}

Range modulo_of(const Range& a, const Range& b) {
  if (b.contains(0)) return {};
  if (b.low > 0) {
    if (a.low >= 0 && a.high < b.low) return a;
    // Between two multiples of the divisor the remainder rises with the operand. So in a tile
    // the upper bits of an index are known, which masks in Morton order need.
    if (b.low == b.high && floor_divided(a.low, b.low) == floor_divided(a.high, b.low)) {
      const std::int64_t multiple = b.low * floor_divided(a.low, b.low);
      return {a.low - multiple, a.high - multiple};
    }
    return {0, b.high - 1};
  }
  return {b.low + 1, 0};
}

// The range of a truth value: 1 .. 1 if it is always true, 0 .. 0 if never, else 0 .. 1.
Range truth_of(bool always, bool never) { return {always ? 1 : 0, never ? 0 : 1}; }

// Calls f with the offset of the first element of each line along the last axis.
template <class F>
void for_each_line(const ConstView& view, const F& f) {
  const auto step = [&](auto&& self, int axis, Index offset) -> void {
    if (axis + 1 >= view.rank()) return f(offset);
    for (Index n = 0; n < view.size(axis); ++n)
      self(self, axis + 1, offset + n * view.stride(axis));
  };
  step(step, 0, 0);
}

// No integers: the range that extend() starts from.
constexpr Range kNone{kLargestInteger, kLeastInteger};

void extend(Range& range, const Range& other) {
  range.low = std::min(range.low, other.low);
  range.high = std::max(range.high, other.high);
}

Range range_of_line(const ConstView& view, Index offset, Index stride, Index count) {
  Range range = kNone;
  for (Index n = 0; n < count; ++n, offset += stride) {
    const auto x = static_cast<std::int64_t>(
        std::clamp<double>(core::load<double>(view.dtype(), view.data(), offset), -1e18, 1e18));
    extend(range, {x, x});
  }
  return range;
}

Range range_of_array(const ConstView& view) {
  Range range = kNone;
  const int last = view.rank() - 1;
  for_each_line(view, [&](Index offset) {
    extend(range, last < 0 ? range_of_line(view, offset, 0, 1)
                           : range_of_line(view, offset, view.stride(last), view.size(last)));
  });
  return range;
}

}  // namespace

Ranges::Ranges(std::string_view function, std::string_view argument, const Program& program)
    : program_(&program), ranges_(program.steps().size()), of_arrays_(program.steps().size()) {
  for (std::size_t n = 0; n < ranges_.size(); ++n) {
    const Step& x = program.steps()[n];
    if (x.operation != Operation::kElement || x.type != Type::kInteger) continue;
    Range& range = of_arrays_[n];
    range = range_of_array(x.array->view);
    if (range.low >= kLeastInteger && range.high <= kLargestInteger) continue;
    throw Error(function, argument,
                core::text("reads ", x.array->name, ", whose integers must fit in 32 bits, got ",
                           range.low < kLeastInteger ? range.low : range.high));
  }
}

void Ranges::index_arrays() {
  for (const Step& x : program_->steps()) {
    if (x.operation != Operation::kElement || x.type == Type::kNumber) continue;
    const bool known = std::any_of(indexed_.begin(), indexed_.end(),
                                   [&](const auto& indexed) { return indexed.array == x.array; });
    if (!known) indexed_.emplace_back(*x.array);
  }
}

Ranges::IndexedArray::IndexedArray(const detail::CapturedArray& of) : array(&of) {
  const ConstView& view = of.view;
  const int last = view.rank() - 1;
  all = kNone;
  for_each_line(view, [&](Index offset) {
    const Index width = last < 0 ? 1 : view.size(last);
    const Index stride = last < 0 ? 0 : view.stride(last);
    for (Index n = 0; n < width; n += kBlock) {
      blocks.push_back(
          range_of_line(view, offset + n * stride, stride, std::min(kBlock, width - n)));
      extend(all, blocks.back());
    }
  });
}

Range Ranges::IndexedArray::range_in(std::span<const Range> box) const {
  constexpr Index kMostLines = 64;
  constexpr Index kMostElements = 32;  // that are looked at one by one
  const ConstView& view = array->view;
  const int last = view.rank() - 1;
  if (last < 0 || blocks.empty()) return all;
  Index lines = 1;
  std::array<Range, kMaxRank> within{};
  for (int axis = 0; axis <= last; ++axis) {
    const Range& indices = box[static_cast<std::size_t>(axis)];
    // Evaluation clamps indices to the array, too.
    const auto clamped = [&](std::int64_t x) {
      return std::clamp(x, std::int64_t{0}, std::int64_t{view.size(axis) - 1});
    };
    within[static_cast<std::size_t>(axis)] = {clamped(indices.low), clamped(indices.high)};
    if (axis < last) lines *= clamped(indices.high) - clamped(indices.low) + 1;
    if (lines > kMostLines) return all;
  }
  const Range& columns = within[static_cast<std::size_t>(last)];
  const Index width = columns.high - columns.low + 1;
  const bool are_few = lines * width <= kMostElements;
  const Index blocks_of_line = core::divide_up(view.size(last), kBlock);
  Range range = kNone;
  const auto visit = [&](auto&& self, int axis, Index line, Index offset) -> void {
    const Range& here = within[static_cast<std::size_t>(axis)];
    const Index stride = view.stride(axis);
    if (axis == last && are_few) {
      return extend(range, range_of_line(view, offset + columns.low * stride, stride, width));
    }
    if (axis == last) {
      for (Index n = columns.low / kBlock; n <= columns.high / kBlock; ++n)
        extend(range, blocks[static_cast<std::size_t>(line * blocks_of_line + n)]);
      return;
    }
    for (Index n = here.low; n <= here.high; ++n)
      self(self, axis + 1, line * view.size(axis) + n, offset + n * stride);
  };
  visit(visit, 0, 0, 0);
  return range;
}

void Ranges::find(const Pairs& pairs) {
  for (std::size_t n = 0; n < ranges_.size(); ++n) {
    const Step& x = program_->steps()[n];
    if (x.type == Type::kNumber) continue;
    ranges_[n] = x.operation == Operation::kElement ? range_of_element(x, of_arrays_[n])
                                                    : range_of(x, pairs);
  }
}

Range Ranges::range_of_element(const Step& x, const Range& of_all) const {
  for (const IndexedArray& indexed : indexed_) {
    if (indexed.array != x.array) continue;
    std::array<Range, kMaxRank> box{};
    for (std::size_t axis = 0; axis < x.operands.size(); ++axis)
      box[axis] = (*this)[x.operands[axis]];
    return indexed.range_in({box.data(), x.operands.size()});
  }
  return x.type == Type::kTruth ? Range{0, 1} : of_all;
}

Range Ranges::range_of(const Step& x, const Pairs& pairs) const {
  const auto operand = [&](std::size_t n) {
    return n < x.operands.size() ? (*this)[x.operands[n]] : Range{};
  };
  const Range a = operand(0);
  const Range b = operand(1);
  const bool of_numbers = x.operands_type == Type::kNumber;
  switch (x.operation) {
    case Operation::kBatch:
      return {pairs.b, pairs.b + pairs.B - 1};
    case Operation::kHead:
      return {pairs.h, pairs.h + pairs.H - 1};
    case Operation::kQuery:
      return {pairs.i, pairs.i + pairs.Tq - 1};
    case Operation::kKey:
      return {pairs.j, pairs.j + pairs.Tk - 1};
    case Operation::kQueries:
      return {pairs.shortest.Tq, pairs.longest.Tq};
    case Operation::kKeys:
      return {pairs.shortest.Tk, pairs.longest.Tk};
    case Operation::kConstant:
      return {static_cast<std::int64_t>(x.number), static_cast<std::int64_t>(x.number)};
    case Operation::kAdd:
      return unwrapped(a.low + b.low, a.high + b.high);
    case Operation::kSubtract:
      return unwrapped(a.low - b.high, a.high - b.low);
    case Operation::kMultiply:
      return of_corners(a, b, [](std::int64_t p, std::int64_t q) { return p * q; });
    case Operation::kDivide:
      return divided(a, b);
    case Operation::kModulo:
      return modulo_of(a, b);
    case Operation::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Operation::kMax:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Operation::kLess:
      return of_numbers ? Range{0, 1} : truth_of(a.high < b.low, a.low >= b.high);
    case Operation::kLessEqual:
      return of_numbers ? Range{0, 1} : truth_of(a.high <= b.low, a.low > b.high);
    case Operation::kAnd:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Operation::kOr:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Operation::kNot:
      return {1 - a.high, 1 - a.low};
    case Operation::kWhere: {
      const Range c = operand(2);
      if (a.low == 1) return b;
      if (a.high == 0) return c;
      return {std::min(b.low, c.low), std::max(b.high, c.high)};
    }
    case Operation::kNegate:
      return unwrapped(-a.high, -a.low);
    case Operation::kAbs:
      return unwrapped(a.contains(0) ? 0 : std::min(std::abs(a.low), std::abs(a.high)),
                       std::max(std::abs(a.low), std::abs(a.high)));
    case Operation::kToInteger:
      return of_numbers ? Range{} : a;
    case Operation::kEqual:
    case Operation::kNotEqual: {
      if (of_numbers) return {0, 1};
      const bool differ = a.high < b.low || b.high < a.low;
      const bool equal = a.low == a.high && b.low == b.high && a.low == b.low;
      return x.operation == Operation::kEqual ? truth_of(equal, differ) : truth_of(differ, equal);
    }
    case Operation::kElement:  // see range_of_element()
    case Operation::kScore:
    case Operation::kExp:
    case Operation::kLog:
    case Operation::kSqrt:
    case Operation::kTanh:
    case Operation::kSin:
    case Operation::kCos:
    case Operation::kFloor:
    case Operation::kToNumber:
      break;  // numbers
  }
  return {};
}

}  // namespace qkv::expressions
