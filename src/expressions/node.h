// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_NODE_H_
#define QKV_EXPRESSIONS_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <qkv/expression.h>

// The nodes of expressions. They are made by the functions of qkv/expression.h, which check and
// convert the operands, and never change.
namespace qkv::detail {

enum class Operation : std::uint8_t {
  // Leaves: the score, the place of a pair, the lengths of its sequence, a constant.
  kScore,
  kBatch,
  kHead,
  kQuery,
  kKey,
  kQueries,  // the number of queries of the sequence
  kKeys,
  kConstant,
  // An element of a captured array; the operands are its indices.
  kElement,
  // Two operands of one type, integers or numbers.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,  // of integers: rounded down
  kModulo,
  kMin,
  kMax,
  // Two operands of one type; truth values only with kEqual and kNotEqual.
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  // Truth values.
  kAnd,
  kOr,
  kNot,
  // A truth value and two operands of one type.
  kWhere,
  // One operand, an integer or a number.
  kNegate,
  kAbs,
  // One number.
  kExp,
  kLog,
  kSqrt,
  kTanh,
  kSin,
  kCos,
  kFloor,
  // One operand of another type.
  kToNumber,
  kToInteger,
};

struct CapturedArray {
  ConstView view;
  std::string name;
  Expression::Type type;
};

struct ExpressionNode {
  Operation operation = Operation::kConstant;
  Expression::Type type = Expression::Type::kNumber;
  std::vector<std::shared_ptr<const ExpressionNode>> operands{};
  double number = 0;  // a constant, of any type
  std::shared_ptr<const CapturedArray> array{};
};

}  // namespace qkv::detail

#endif  // QKV_EXPRESSIONS_NODE_H_
