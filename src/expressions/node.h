// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_NODE_H_
#define QKV_EXPRESSIONS_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <qkv/expression.h>

// The nodes of expressions. The functions of qkv/expression.h check and convert the operands of
// each new node; a node never changes.
namespace qkv::detail {

enum class Operation : std::uint8_t {
  // Leaves: the score, a pair's b, h, i and j, the lengths of its sequence, a constant.
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
  // Two operands of one type; kEqual and kNotEqual also take truth values.
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  // One or two operands, all truth values.
  kAnd,
  kOr,
  kNot,
  // A truth value and two operands of one type.
  kWhere,
  // One operand, an integer or a number.
  kNegate,
  kAbs,
  // One operand, a number.
  kExp,
  kLog,
  kSqrt,
  kTanh,
  kSin,
  kCos,
  kFloor,
  // One operand, converted to the type in the name.
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
  double number = 0;  // the value of a constant of any type; a truth value is 0 or 1
  std::shared_ptr<const CapturedArray> array{};  // the array of a kElement
  int depth = 1;                                 // of nested operations
};

}  // namespace qkv::detail

#endif  // QKV_EXPRESSIONS_NODE_H_
