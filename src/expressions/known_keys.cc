// SPDX-License-Identifier: Apache-2.0
#include "expressions/known_keys.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/integers.h"
#include "core/tile_classes.h"
#include "expressions/evaluation.h"
#include "expressions/ranges.h"

namespace qkv::expressions {
namespace {

using core::KeyRange;
using core::TileClass;

// How a value changes from each key to the next. A value that is constant in the row never falls
// and never rises.
struct Course {
  bool never_falls = false;
  bool never_rises = false;

  bool known() const { return never_falls || never_rises; }
  Course reversed() const { return {never_rises, never_falls}; }
  Course reversed_if(bool reverses) const { return reverses ? reversed() : *this; }
};
Course operator&(const Course& a, const Course& b) {
  return {a.never_falls && b.never_falls, a.never_rises && b.never_rises};
}

// How the elements of an array change along an axis, in all lines of the array along that axis.
Course course_along(const ConstView& view, int axis) {
  Course course{true, true};
  const auto element = [&](Index offset) {
    return core::load<Index>(view.dtype(), view.data(), offset);
  };
  const auto visit = [&](auto&& self, int at, Index offset) -> void {
    if (!course.known()) return;
    if (at == view.rank()) {
      for (Index n = 1; n < view.size(axis); ++n, offset += view.stride(axis)) {
        const Index first = element(offset);
        const Index second = element(offset + view.stride(axis));
        course.never_falls = course.never_falls && second >= first;
        course.never_rises = course.never_rises && second <= first;
      }
      return;
    }
    const Index size = at == axis ? std::min(view.size(axis), Index{1}) : view.size(at);
    for (Index n = 0; n < size; ++n) self(self, at + 1, offset + n * view.stride(at));
  };
  visit(visit, 0, 0);
  return course;
}

// The courses of a program's integers.
class Courses {
 public:
  Courses(const Program& program, const Pairs& pairs) : ranges_("", "", program) {
    ranges_.find(pairs);
    for (const Step& x : program.steps()) {
      const int n = static_cast<int>(courses_.size());
      courses_.push_back(x.per_key ? course_of(n, x) : Course{true, true});
    }
  }
  const Course& operator[](int step) const { return courses_[static_cast<std::size_t>(step)]; }
  const Range& range(int step) const { return ranges_[step]; }

 private:
  // Steps that may wrap around have no course: their range is that of all integers.
  Course course_of(int n, const Step& x) const {
    const Range& range = ranges_[n];
    if (x.type != Type::kInteger) return {};
    if (range.low == kLeastInteger && range.high == kLargestInteger) return {};
    const auto operand = [&](std::size_t k) { return (*this)[x.operands[k]]; };
    const auto range_of = [&](std::size_t k) { return ranges_[x.operands[k]]; };
    const auto is_constant = [&](std::size_t k) {
      return operand(k).never_falls && operand(k).never_rises;
    };
    switch (x.operation) {
      case Operation::kKey:
        return {true, false};
      case Operation::kNegate:
        return operand(0).reversed();
      case Operation::kAbs:
        if (range_of(0).low >= 0) return operand(0);
        return range_of(0).high <= 0 ? operand(0).reversed() : Course{};
      case Operation::kAdd:
      case Operation::kMin:
      case Operation::kMax:
        return operand(0) & operand(1);
      case Operation::kSubtract:
        return operand(0) & operand(1).reversed();
      case Operation::kMultiply:
        for (const auto& [factor, other] : {std::pair{0, 1}, {1, 0}}) {
          const Range sign = range_of(static_cast<std::size_t>(factor));
          if (!is_constant(static_cast<std::size_t>(factor))) continue;
          if (sign.low < 0 && sign.high > 0) continue;
          return operand(static_cast<std::size_t>(other)).reversed_if(sign.low < 0);
        }
        return {};
      case Operation::kDivide:
        return is_constant(1) && range_of(1).low > 0 ? operand(0) : Course{};
      case Operation::kModulo:
        // x mod y is x if 0 <= x < y.
        return range_of(0).low >= 0 && range_of(0).high < range_of(1).low ? operand(0) : Course{};
      case Operation::kWhere:
        return is_constant(0) ? operand(1) & operand(2) : Course{};
      case Operation::kElement:
        return course_of_element(x);
      case Operation::kToInteger:  // of numbers and truth values
      case Operation::kScore:
      case Operation::kBatch:
      case Operation::kHead:
      case Operation::kQuery:
      case Operation::kQueries:
      case Operation::kKeys:
      case Operation::kConstant:
      case Operation::kLess:
      case Operation::kLessEqual:
      case Operation::kEqual:
      case Operation::kNotEqual:
      case Operation::kAnd:
      case Operation::kOr:
      case Operation::kNot:
      case Operation::kExp:
      case Operation::kLog:
      case Operation::kSqrt:
      case Operation::kTanh:
      case Operation::kSin:
      case Operation::kCos:
      case Operation::kFloor:
      case Operation::kToNumber:
        return {};
    }
    __builtin_unreachable();
  }

  // An element has a course if its array is sorted along the only axis whose index changes with the
  // key, and that index has a course.
  Course course_of_element(const Step& x) const {
    int axis = -1;
    for (std::size_t n = 0; n < x.operands.size(); ++n) {
      const Course& index = (*this)[x.operands[n]];
      if (index.never_falls && index.never_rises) continue;
      if (axis >= 0 || !index.known()) return {};
      axis = static_cast<int>(n);
    }
    if (axis < 0) return {true, true};
    const Course along = course_along(x.array->view, axis);
    const bool falls = (*this)[x.operands[static_cast<std::size_t>(axis)]].never_rises;
    return along.reversed_if(falls);
  }

  Ranges ranges_;
  std::vector<Course> courses_;
};

// A range that contains the keys for which a condition holds; `exact` if the condition holds for
// all keys of the range.
struct Solution {
  KeyRange keys;
  bool exact = false;
};

Solution both(const Solution& a, const Solution& b) {
  const KeyRange keys{std::max(a.keys.begin, b.keys.begin), std::min(a.keys.end, b.keys.end)};
  if (keys.empty()) return {{}, true};
  return {keys, a.exact && b.exact};
}
Solution either(const Solution& a, const Solution& b) {
  if (a.keys.empty()) return b;
  if (b.keys.empty()) return a;
  const KeyRange keys{std::min(a.keys.begin, b.keys.begin), std::max(a.keys.end, b.keys.end)};
  const auto is_all = [&](const Solution& x) { return x.exact && x.keys.size() == keys.size(); };
  const bool touch = a.keys.begin <= b.keys.end && b.keys.begin <= a.keys.end;
  return {keys, is_all(a) || is_all(b) || (a.exact && b.exact && touch)};
}

// Solves a mask for the keys of one query after the other.
class Solver {
 public:
  Solver(const Program& program, const Pairs& pairs)
      : program_(program), courses_(program, pairs), evaluation_(program) {}

  // `first` is the place of the query's first key, which is key 0 of the solution; the query has
  // `keys` keys.
  Solution solve(const RowPlace& first, Index keys) {
    first_ = first;
    Tk_ = keys;
    if (Tk_ == 0) return {{}, true};
    search_ = 0;
    key_ = -1;
    go_to(0);
    splits_ = 0;
    known_.assign(2 * program_.steps().size(), std::nullopt);
    return where_is(static_cast<int>(program_.steps().size()) - 1, true);
  }

 private:
  // A side of a comparison: the value of a step, or its negative.
  struct Side {
    int step = 0;
    bool negative = false;
  };

  const Step& step(int n) const { return program_.steps()[static_cast<std::size_t>(n)]; }
  Solution all() const { return {{0, Tk_}, true}; }
  Solution unknown() const { return {{0, Tk_}, false}; }

  void go_to(Index key) {
    if (key == key_) return;
    key_ = key;
    evaluation_.run(first_.shifted(0, key), 1, nullptr, nullptr);
  }
  Index value(int n) const { return evaluation_.integer(static_cast<std::size_t>(n), 0); }
  Index value(const Side& x) const { return x.negative ? -value(x.step) : value(x.step); }
  Course course(const Side& x) const { return courses_[x.step].reversed_if(x.negative); }
  // Whether a value grows by key_step(x) from each key to the next, given that it has a course.
  bool is_linear(const Side& x) const { return step(x.step).is_linear; }
  Index key_step(const Side& x) const {
    return x.negative ? -step(x.step).key_step : step(x.step).key_step;
  }

  // The keys for which the truth value of step n is `wanted`. Each solution is found once and kept
  // for the query, since many steps may use it.
  Solution where_is(int n, bool wanted) {
    std::optional<Solution>& known = known_[2 * static_cast<std::size_t>(n) + (wanted ? 1 : 0)];
    if (!known) known = find_where(n, wanted);
    return *known;
  }
  Solution find_where(int n, bool wanted) {
    const Step& x = step(n);
    if (!x.per_key) return (value(n) != 0) == wanted ? all() : Solution{{}, true};
    const auto of = [&](std::size_t operand, bool answer) {
      return where_is(x.operands[operand], answer);
    };
    const auto side = [&](std::size_t operand) { return Side{x.operands[operand]}; };
    if (x.operation == Operation::kNot) return of(0, !wanted);
    if (x.operation == Operation::kAnd || x.operation == Operation::kOr) {
      const Solution first = of(0, wanted);
      const Solution second = of(1, wanted);
      return (x.operation == Operation::kAnd) == wanted ? both(first, second)
                                                        : either(first, second);
    }
    if (x.operation == Operation::kWhere) {
      const Solution first = both(of(0, true), of(1, wanted));
      return either(first, both(of(0, false), of(2, wanted)));
    }
    if (x.operands_type != Type::kInteger) return unknown();
    if (x.operation == Operation::kLess) {
      return wanted ? less(side(0), side(1)) : less_or_equal(side(1), side(0));
    }
    if (x.operation == Operation::kLessEqual) {
      return wanted ? less_or_equal(side(0), side(1)) : less(side(1), side(0));
    }
    if (x.operation == Operation::kEqual || x.operation == Operation::kNotEqual) {
      if ((x.operation == Operation::kEqual) == wanted) {
        const Solution first = less_or_equal(side(0), side(1));
        return both(first, less_or_equal(side(1), side(0)));
      }
      const Solution first = less(side(0), side(1));
      return either(first, less(side(1), side(0)));
    }
    return unknown();
  }

  Solution less(const Side& a, const Side& b) { return compared(a, b, -1); }
  Solution less_or_equal(const Side& a, const Side& b) { return compared(a, b, 0); }

  // The keys for which a - b <= most.
  Solution compared(const Side& a, const Side& b, Index most) {
    if (!course(a).known()) {
      return split(a, false, [&](const Side& part) { return compared(part, b, most); });
    }
    if (!course(b).known()) {
      return split(b, true, [&](const Side& part) { return compared(a, part, most); });
    }
    const Course difference = course(a) & course(b).reversed();
    if (!difference.known()) return unknown();
    if (is_linear(a) && is_linear(b)) {
      go_to(0);
      return until(value(a) - value(b), key_step(a) - key_step(b), most);
    }
    const auto holds = [&](Index key) {
      go_to(key);
      return value(a) - value(b) <= most;
    };
    if (difference.never_falls) {
      return {{0, first_key([&](Index key) { return !holds(key); })}, true};
    }
    return {{first_key(holds), Tk_}, true};
  }

  // Solves a comparison whose side x is max or min of two values, or abs, the larger of a value and
  // its negative: calls solve() for each of the two values. `is_right`: x is the side b of a - b.
  template <class F>
  Solution split(const Side& x, bool is_right, const F& solve) {
    const Step& from = step(x.step);
    const bool is_abs = from.operation == Operation::kAbs;
    if (!is_abs && from.operation != Operation::kMax && from.operation != Operation::kMin) {
      return unknown();
    }
    // abs of the least integer wraps around; the negative in 64 bits does not.
    if (is_abs && courses_.range(from.operands[0]).low == kLeastInteger) return unknown();
    // Splits of splits double the work each time.
    if (++splits_ > kMostSplits) return unknown();
    const Side first{from.operands[0], x.negative};
    const Side second{from.operands[is_abs ? 0 : 1], x.negative != is_abs};
    const Solution of_first = solve(first);
    const Solution of_second = solve(second);
    const bool is_larger = (from.operation != Operation::kMin) != x.negative;
    return is_larger != is_right ? both(of_first, of_second) : either(of_first, of_second);
  }

  // The keys for which start + change * key <= most.
  Solution until(Index start, Index change, Index most) const {
    if (change == 0) return start <= most ? all() : Solution{{}, true};
    if (change > 0) {
      const Index end = start > most ? 0 : std::min(Tk_, (most - start) / change + 1);
      return {{0, end}, true};
    }
    const Index begin = start <= most ? 0 : std::min(Tk_, core::divide_up(start - most, -change));
    return {{begin, Tk_}, true};
  }

  // The first key for which holds(key) is true; Tk if there is none. holds() must be true for all
  // later keys. Searches from the answer for the previous query, since neighbours' answers are
  // close.
  template <class F>
  Index first_key(const F& holds) {
    if (search_ == answers_.size()) answers_.push_back(0);
    Index& answer = answers_[search_++];
    const Index guess = std::min(answer, Tk_);
    Index low = 0;
    Index high = Tk_;
    for (Index reach = 1; guess - reach >= low; reach *= 2) {
      if (!holds(guess - reach)) {
        low = guess - reach + 1;
        break;
      }
      high = guess - reach;
    }
    if (high >= guess) {
      for (Index reach = 0; guess + reach < high; reach = 2 * reach + 1) {
        if (holds(guess + reach)) {
          high = guess + reach;
          break;
        }
        low = guess + reach + 1;
      }
    }
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (holds(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return answer = low;
  }

  const Program& program_;
  Courses courses_;
  Evaluation<float> evaluation_;
  RowPlace first_{};
  std::vector<std::optional<Solution>> known_;  // by step, then by `wanted`
  Index Tk_ = 0;
  Index key_ = -1;              // the key whose values the evaluation holds
  std::vector<Index> answers_;  // of first_key() for the previous query, by search_
  std::size_t search_ = 0;
  static constexpr int kMostSplits = 256;
  int splits_ = 0;  // calls of split() for this query
};

}  // namespace

std::shared_ptr<const core::RowRanges> solved_for_keys(const Program& mask,
                                                       const core::Problem& p) {
  auto found = std::make_shared<core::RowRanges>();
  found->Tq = p.Tq;
  found->exact = true;
  const bool many_entries = p.packed() || p.paged() || mask.reads(Operation::kBatch);
  const Index entries = many_entries ? p.B : std::min(p.B, Index{1});
  found->H = mask.reads(Operation::kHead) ? p.H : std::min(p.H, Index{1});
  Solver solver(mask, all_pairs(p));
  bool is_useful = false;
  Index queries = 0;
  if (many_entries) found->first_queries.push_back(0);
  for (Index b = 0; b < entries; ++b) {
    const core::Sequence s = p.sequence(b);
    const Pairs pairs = all_pairs(p, s);
    for (Index h = 0; h < found->H; ++h) {
      for (Index i = 0; i < s.Tq; ++i) {
        if (i % 256 == 0) p.stop();
        const At at{static_cast<std::int32_t>(b), static_cast<std::int32_t>(p.head_number(h)),
                    static_cast<std::int32_t>(pairs.i + i), static_cast<std::int32_t>(pairs.j)};
        const Solution solution = solver.solve({at, pairs.longest}, s.Tk);
        const KeyRange keys = solution.keys.empty() ? KeyRange{} : solution.keys;
        found->exact = found->exact && solution.exact;
        is_useful = is_useful || keys.size() < s.Tk;
        found->bounds.push_back(static_cast<std::int32_t>(keys.begin));
        found->bounds.push_back(static_cast<std::int32_t>(keys.end));
      }
    }
    queries += s.Tq;
    if (many_entries) found->first_queries.push_back(queries);
  }
  if (!is_useful && !found->exact) return nullptr;
  return found;
}

std::shared_ptr<const detail::TileClasses> classified_by_ranges(const Program& mask,
                                                                const core::Problem& p) {
  constexpr Index kLeastQueries = 16;
  if (p.packed() || p.paged() || p.Tq < kLeastQueries || p.B == 0 || p.H == 0) return nullptr;
  auto found = std::make_shared<detail::TileClasses>();
  found->Tq = p.Tq;
  found->Tk = p.Tk;
  found->B = mask.reads(Operation::kBatch) ? p.B : 1;
  found->H = mask.reads(Operation::kHead) ? p.H : 1;
  Ranges ranges("", "", mask);
  ranges.index_arrays();
  bool is_useful = false;
  const Pairs all = all_pairs(p, {0, 0, p.Tq, p.Tk});
  Pairs pairs = all;
  for (pairs.b = 0; pairs.b < found->B; ++pairs.b) {
    for (Index h = 0; h < found->H; ++h) {
      pairs.h = p.head_number(h);
      for (Index i = 0; i < p.Tq; i += core::kTileSide) {
        p.stop();
        pairs.i = all.i + i;
        pairs.Tq = std::min(core::kTileSide, p.Tq - i);
        for (Index j = 0; j < p.Tk; j += core::kTileSide) {
          pairs.j = all.j + j;
          pairs.Tk = std::min(core::kTileSide, p.Tk - j);
          ranges.find(pairs);
          const Range& answer = ranges[static_cast<int>(mask.steps().size()) - 1];
          const TileClass tile = answer.high == 0  ? TileClass::kDead
                                 : answer.low == 1 ? TileClass::kFull
                                                   : TileClass::kPartial;
          is_useful = is_useful || tile != TileClass::kPartial;
          found->classes.push_back(tile);
        }
      }
    }
  }
  return is_useful ? found : nullptr;
}

}  // namespace qkv::expressions
