// SPDX-License-Identifier: Apache-2.0
#include "expressions/program.h"

#include <atomic>
#include <bit>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace qkv::expressions {
namespace {

// Two steps with equal keys have equal values. NaN equals NaN by its bits.
using Key = std::tuple<Operation, Type, std::vector<int>, std::uint64_t, const CapturedArray*>;

// Sets is_linear and key_step of an integer. A sum that wraps around stays linear modulo 2^32.
void find_key_step(Step& x, const std::vector<Step>& steps) {
  const auto operand = [&](std::size_t n) -> const Step& {
    return steps[static_cast<std::size_t>(x.operands[n])];
  };
  const auto set = [&](std::int64_t step) {
    constexpr std::int64_t kMost = 1 << 20;
    x.is_linear = -kMost <= step && step <= kMost;
    x.key_step = x.is_linear ? static_cast<std::int32_t>(step) : 0;
  };
  if (x.type != Type::kInteger) return;
  if (!x.per_key) return set(0);
  if (x.operation == Operation::kKey) return set(1);
  if (x.operation == Operation::kNegate && operand(0).is_linear) {
    return set(-std::int64_t{operand(0).key_step});
  }
  const bool adds = x.operation == Operation::kAdd;
  if (!adds && x.operation != Operation::kSubtract) return;
  if (!operand(0).is_linear || !operand(1).is_linear) return;
  const std::int64_t second = operand(1).key_step;
  set(operand(0).key_step + (adds ? second : -second));
}

bool adds_to_score(const Step& x, const std::vector<Step>& steps) {
  const auto operand = [&](std::size_t n) -> const Step& {
    return steps[static_cast<std::size_t>(x.operands[n])];
  };
  if (x.operation == Operation::kScore) return true;
  const auto is_sum = [&](std::size_t score, std::size_t other) {
    return operand(score).adds_to_score && !operand(other).of_score;
  };
  if (x.operation == Operation::kAdd) return is_sum(0, 1) || is_sum(1, 0);
  return x.operation == Operation::kSubtract && is_sum(0, 1);
}

}  // namespace

// Walks the nodes with an explicit stack, not recursion, since an expression may be deeply nested.
Program::Program(const Expression& root) : root_(root.shared_node()) {
  static std::atomic<std::uint64_t> programs = 0;
  id_ = ++programs;
  std::map<Key, int> known;
  std::unordered_map<const ExpressionNode*, int> steps;
  std::vector<const ExpressionNode*> open{root_.get()};
  while (!open.empty()) {
    const ExpressionNode& node = *open.back();
    if (steps.contains(&node)) {
      open.pop_back();
      continue;
    }
    bool ready = true;
    for (const auto& operand : node.operands) {
      if (steps.contains(operand.get())) continue;
      open.push_back(operand.get());
      ready = false;
    }
    if (!ready) continue;
    open.pop_back();
    Step step{.operation = node.operation,
              .type = node.type,
              .per_key = node.operation == Operation::kScore || node.operation == Operation::kKey,
              .of_score = node.operation == Operation::kScore,
              .of_captured = node.operation == Operation::kElement && node.type == Type::kNumber,
              .number = node.number,
              .array = node.array.get()};
    for (const auto& operand : node.operands) {
      const int number = steps.at(operand.get());
      const Step& from = steps_[static_cast<std::size_t>(number)];
      step.operands.push_back(number);
      step.operands_type = from.type;
      step.per_key = step.per_key || from.per_key;
      step.of_score = step.of_score || from.of_score;
      step.of_captured = step.of_captured || (from.of_captured && from.type == Type::kNumber);
    }
    find_key_step(step, steps_);
    step.adds_to_score = adds_to_score(step, steps_);
    const Key key{step.operation, step.type, step.operands,
                  std::bit_cast<std::uint64_t>(step.number), step.array};
    const auto [found, is_new] = known.try_emplace(key, static_cast<int>(steps_.size()));
    if (is_new) steps_.push_back(std::move(step));
    steps.emplace(&node, found->second);
  }
}

}  // namespace qkv::expressions
