// SPDX-License-Identifier: Apache-2.0
#include "expressions/indices.h"

#include <algorithm>
#include <vector>

#include <qkv/error.h>

#include "core/message.h"
#include "expressions/evaluation.h"
#include "expressions/ranges.h"

namespace qkv::expressions {
namespace {

using core::text;

// A condition on a value: an index must lie within an axis, or a divisor must not be 0.
struct Demand {
  int step = 0;     // the step that computes the value
  int user = 0;     // the step that reads the element or divides
  int axis = 0;     // of the array
  Index size = -1;  // of the axis; -1 for a divisor

  bool is_met_by(std::int64_t x) const { return size < 0 ? x != 0 : x >= 0 && x < size; }
};

std::vector<Demand> demands_of(const Program& program, const Ranges& ranges) {
  std::vector<Demand> demands;
  for (std::size_t n = 0; n < program.steps().size(); ++n) {
    const Step& x = program.steps()[n];
    const int user = static_cast<int>(n);
    if (x.operation == Operation::kElement) {
      for (int axis = 0; axis < x.array->view.rank(); ++axis) {
        const int index = x.operands[static_cast<std::size_t>(axis)];
        const Index size = x.array->view.size(axis);
        if (ranges[index].low < 0 || ranges[index].high >= size) {
          demands.push_back({index, user, axis, size});
        }
      }
    }
    const bool divides = x.operation == Operation::kDivide || x.operation == Operation::kModulo;
    if (divides && x.type == Type::kInteger && ranges[x.operands[1]].contains(0)) {
      demands.push_back({x.operands[1], user});
    }
  }
  return demands;
}

[[noreturn]] void fail(std::string_view function, std::string_view argument, const Program& program,
                       const Demand& demand, std::int64_t value, const At& at) {
  const Step& user = program.steps()[static_cast<std::size_t>(demand.user)];
  const std::string place = text("b = ", at.b, ", h = ", at.h, ", i = ", at.i, ", j = ", at.j);
  if (demand.size < 0) {
    throw Error(function, argument, text("divides an integer by 0 at ", place));
  }
  throw Error(function, argument,
              text("reads ", user.array->name, " at index ", value, " of axis ", demand.axis,
                   ", which has ", demand.size, " elements, at ", place));
}

// Throws Error if the value depends on the score, which is not known before the call.
void refuse_score(std::string_view function, std::string_view argument, const Program& program,
                  const Demand& demand) {
  const auto& steps = program.steps();
  if (!steps[static_cast<std::size_t>(demand.step)].of_score) return;
  if (demand.size < 0) {
    throw Error(function, argument,
                "divides an integer by another that depends on the score and may be 0; exclude 0 "
                "with max or where");
  }
  throw Error(
      function, argument,
      text("reads ", steps[static_cast<std::size_t>(demand.user)].array->name,
           " at an index that depends on the score and may be outside of axis ", demand.axis,
           ", which has ", demand.size, " elements; limit it with min and max"));
}

// Throws Error if the demands are not met by all pairs. T: the type in which the call computes.
template <class T>
void check_pairs(std::string_view function, std::string_view argument, const Program& program,
                 const Pairs& pairs, const core::Problem* p, const std::vector<Demand>& demands) {
  Evaluation<T> evaluation(program);
  const std::vector<T> scores(static_cast<std::size_t>(kPiece));
  const auto narrow = [](Index n) { return static_cast<std::int32_t>(n); };
  for (Index b = 0; b < pairs.B; ++b) {
    const core::Sequence s =
        p != nullptr ? p->sequence(b) : core::Sequence{0, 0, pairs.Tq, pairs.Tk};
    const detail::Lengths lengths =
        p != nullptr ? all_pairs(*p, s).longest : lengths_of(s.Tq, s.Tk);
    for (Index n = 0; n < (p != nullptr ? p->H : pairs.H); ++n) {
      const Index h = p != nullptr ? p->head_number(n) : n;
      for (Index i = 0; i < s.Tq; ++i) {
        if (p != nullptr) p->stop();
        for (Index j = 0; j < s.Tk; j += kPiece) {
          const Index count = std::min(kPiece, s.Tk - j);
          const At at{narrow(b), narrow(h), narrow(pairs.i + i), narrow(pairs.j + j)};
          evaluation.run({at, lengths}, count, scores.data(), nullptr);
          for (const Demand& demand : demands) {
            const auto step = static_cast<std::size_t>(demand.step);
            for (Index c = 0; c < (program.steps()[step].per_key ? count : 1); ++c) {
              const std::int64_t value = evaluation.integer(step, c);
              if (demand.is_met_by(value)) continue;
              fail(function, argument, program, demand, value, detail::shifted(at, 0, narrow(c)));
            }
          }
        }
      }
    }
  }
}

}  // namespace

void check_indices(std::string_view function, std::string_view argument, const Program& program,
                   const Pairs& pairs, const core::Problem* p) {
  if (pairs.B == 0 || pairs.H == 0 || pairs.Tq == 0 || pairs.Tk == 0) return;
  Ranges ranges(function, argument, program);
  ranges.find(pairs);
  const std::vector<Demand> demands = demands_of(program, ranges);
  if (demands.empty()) return;
  for (const Demand& demand : demands) refuse_score(function, argument, program, demand);
  const bool is_mask = program.result().type == Type::kTruth;  // computed in float32
  if (!is_mask && p != nullptr && p->accumulator == DType::kFloat64) {
    check_pairs<double>(function, argument, program, pairs, p, demands);
  } else {
    check_pairs<float>(function, argument, program, pairs, p, demands);
  }
}

}  // namespace qkv::expressions
