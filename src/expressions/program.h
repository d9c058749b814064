// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_PROGRAM_H_
#define QKV_EXPRESSIONS_PROGRAM_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "expressions/node.h"

namespace qkv::expressions {

using detail::CapturedArray;
using detail::ExpressionNode;
using detail::Operation;
using Type = Expression::Type;

// A step of a program. It refers to earlier steps by their numbers.
struct Step {
  Operation operation = Operation::kConstant;
  Type type = Type::kNumber;
  Type operands_type = Type::kNumber;  // of the last operand
  bool per_key = false;                // one value per key of a row, else one per row
  bool of_score = false;               // depends on the score
  bool of_captured = false;            // is a captured number, or depends on one through numbers
  bool adds_to_score = false;          // is the score plus a value that does not depend on it
  // Whether an integer grows by key_step from each key of a row to the next.
  bool is_linear = false;
  std::int32_t key_step = 0;
  std::vector<int> operands{};
  double number = 0;
  const CapturedArray* array = nullptr;
};

// An expression as a list of steps, each after its operands; equal steps appear once. The last step
// is the result.
class Program {
 public:
  explicit Program(const Expression& root);

  const std::vector<Step>& steps() const noexcept { return steps_; }
  const Step& result() const noexcept { return steps_.back(); }
  // Whether any step is the leaf `place`.
  bool reads(Operation place) const noexcept {
    return std::ranges::any_of(steps_, [&](const Step& x) { return x.operation == place; });
  }
  // A number that no other program of this process has.
  std::uint64_t id() const noexcept { return id_; }

 private:
  std::uint64_t id_;
  std::shared_ptr<const ExpressionNode> root_;  // owns the CapturedArrays of steps
  std::vector<Step> steps_;
};

}  // namespace qkv::expressions

namespace qkv::detail {

// The program of a mod that was made from an expression.
struct ExpressionProgram {
  expressions::Program program;
  // The mask of a score where(mask, x, -inf).
  std::optional<expressions::Program> mask = std::nullopt;
};

}  // namespace qkv::detail

#endif  // QKV_EXPRESSIONS_PROGRAM_H_
