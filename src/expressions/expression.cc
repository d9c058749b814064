// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include <qkv/error.h>
#include <qkv/expression.h>

#include "core/message.h"
#include "expressions/node.h"

namespace qkv {
namespace {

using core::text;
using detail::CapturedArray;
using detail::ExpressionNode;
using detail::Operation;
using Type = Expression::Type;
using Node = std::shared_ptr<const ExpressionNode>;

constexpr std::string_view kFunction = "expression";

const char* name_of(Type type) {
  switch (type) {
    case Type::kTruth:
      return "a truth value";
    case Type::kInteger:
      return "an integer";
    case Type::kNumber:
      return "a number";
  }
  __builtin_unreachable();
}

// The most operations that may be nested, since the destructor of a node calls itself for its
// operands.
constexpr int kDeepest = 4000;

Expression make(Operation operation, Type type, std::vector<Node> operands = {},
                std::shared_ptr<const CapturedArray> array = nullptr) {
  int depth = 1;
  for (const Node& operand : operands) depth = std::max(depth, operand->depth + 1);
  if (depth > kDeepest) {
    throw Error(kFunction, "operations", text("must not be nested more than ", kDeepest, " deep"));
  }
  return Expression(std::make_shared<const ExpressionNode>(
      ExpressionNode{operation, type, std::move(operands), 0, std::move(array), depth}));
}

Expression constant_of(Type type, double value) {
  return Expression(std::make_shared<const ExpressionNode>(
      ExpressionNode{Operation::kConstant, type, {}, value, nullptr, 1}));
}

// The operand, converted to a type that is not lower, in the order truth value, integer, number.
Node converted(const Expression& x, Type to) {
  if (x.type() == to) return x.shared_node();
  if (x.node().operation == Operation::kConstant) {
    return constant_of(to, x.node().number).shared_node();
  }
  const Operation by = to == Type::kNumber ? Operation::kToNumber : Operation::kToInteger;
  return make(by, to, {x.shared_node()}).shared_node();
}

// An operation on two operands that are converted to the higher of their types, at least `least`.
Expression both(Operation operation, const Expression& a, const Expression& b,
                Type least = Type::kInteger) {
  const Type type = std::max({a.type(), b.type(), least});
  return make(operation, type, {converted(a, type), converted(b, type)});
}

Expression compared(Operation operation, const Expression& a, const Expression& b, Type least) {
  const Type type = std::max({a.type(), b.type(), least});
  return make(operation, Type::kTruth, {converted(a, type), converted(b, type)});
}

void expect_truth(const Expression& x, const char* operation) {
  if (x.type() == Type::kTruth) return;
  throw Error(kFunction, operation,
              text("takes truth values, got ", name_of(x.type()), ": ", x.text()));
}

Expression of_truths(Operation operation, const char* name, const Expression& a,
                     const Expression& b) {
  expect_truth(a, name);
  expect_truth(b, name);
  return make(operation, Type::kTruth, {a.shared_node(), b.shared_node()});
}

Expression of_number(Operation operation, const Expression& x) {
  return make(operation, Type::kNumber, {converted(x, Type::kNumber)});
}

Expression of_own_type(Operation operation, const Expression& x) {
  const Type type = std::max(x.type(), Type::kInteger);
  return make(operation, type, {converted(x, type)});
}

// ---- texts ----------------------------------------------------------------------------------

// How tightly an operation binds its operands, as in Python; larger is tighter.
enum Binding {
  kOrBinds,
  kAndBinds,
  kNotBinds,
  kComparisonBinds,
  kSumBinds,
  kProductBinds,
  kSignBinds,
  kCallBinds
};

struct Spelling {
  const char* sign;
  Binding binding;
};

Spelling spelling_of(const ExpressionNode& node) {
  switch (node.operation) {
    case Operation::kScore:
      return {"s", kCallBinds};
    case Operation::kBatch:
      return {"b", kCallBinds};
    case Operation::kHead:
      return {"h", kCallBinds};
    case Operation::kQuery:
      return {"i", kCallBinds};
    case Operation::kKey:
      return {"j", kCallBinds};
    case Operation::kQueries:
      return {"Tq", kCallBinds};
    case Operation::kKeys:
      return {"Tk", kCallBinds};
    case Operation::kConstant:
    case Operation::kElement:
      return {"", kCallBinds};
    case Operation::kAdd:
      return {" + ", kSumBinds};
    case Operation::kSubtract:
      return {" - ", kSumBinds};
    case Operation::kMultiply:
      return {" * ", kProductBinds};
    case Operation::kDivide:
      return {node.type == Type::kInteger ? " // " : " / ", kProductBinds};
    case Operation::kModulo:
      return {" % ", kProductBinds};
    case Operation::kLess:
      return {" < ", kComparisonBinds};
    case Operation::kLessEqual:
      return {" <= ", kComparisonBinds};
    case Operation::kEqual:
      return {" == ", kComparisonBinds};
    case Operation::kNotEqual:
      return {" != ", kComparisonBinds};
    case Operation::kAnd:
      return {" and ", kAndBinds};
    case Operation::kOr:
      return {" or ", kOrBinds};
    case Operation::kNot:
      return {"not ", kNotBinds};
    case Operation::kNegate:
      return {"-", kSignBinds};
    case Operation::kMin:
      return {"min", kCallBinds};
    case Operation::kMax:
      return {"max", kCallBinds};
    case Operation::kWhere:
      return {"where", kCallBinds};
    case Operation::kAbs:
      return {"abs", kCallBinds};
    case Operation::kExp:
      return {"exp", kCallBinds};
    case Operation::kLog:
      return {"log", kCallBinds};
    case Operation::kSqrt:
      return {"sqrt", kCallBinds};
    case Operation::kTanh:
      return {"tanh", kCallBinds};
    case Operation::kSin:
      return {"sin", kCallBinds};
    case Operation::kCos:
      return {"cos", kCallBinds};
    case Operation::kFloor:
      return {"floor", kCallBinds};
    case Operation::kToNumber:
      return {"float", kCallBinds};
    case Operation::kToInteger:
      return {"int", kCallBinds};
  }
  __builtin_unreachable();
}

std::string constant_text(const ExpressionNode& node) {
  if (node.type == Type::kTruth) return node.number != 0 ? "True" : "False";
  if (node.type == Type::kInteger) return text(static_cast<std::int64_t>(node.number));
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), node.number).ptr;
  std::string written(digits, end);
  // Python would read digits alone as an integer.
  if (written.find_first_not_of("-0123456789") == std::string::npos) written += ".0";
  return written;
}

// Writes an expression in Python's notation. Parts beyond the limits become "...". Limits are
// needed because a shared part is written each time it is used, and each level of nesting takes
// stack memory.
class Writer {
 public:
  std::string text{};

  void write(const ExpressionNode& node, int outer, int level = 0) {
    if (level > kMostLevels || text.size() > kMostLetters) {
      text += "...";
      return;
    }
    const auto [sign, binding] = spelling_of(node);
    if (node.operation == Operation::kConstant) {
      const std::string written = constant_text(node);
      const bool in_brackets = written.starts_with('-') && outer > kSumBinds;
      text += in_brackets ? "(" + written + ")" : written;
    } else if (node.operation == Operation::kElement) {
      text += node.array->name + "[";
      write_list(node, level);
      text += "]";
    } else if (node.operands.empty()) {
      text += sign;
    } else if (binding == kCallBinds) {
      text += std::string(sign) + "(";
      write_list(node, level);
      text += ")";
    } else {
      if (binding < outer) text += "(";
      write_operands(node, {sign, binding}, level);
      if (binding < outer) text += ")";
    }
  }

 private:
  static constexpr int kMostLevels = 200;
  static constexpr std::size_t kMostLetters = 10'000;

  void write_operands(const ExpressionNode& node, const Spelling& spelling, int level) {
    const auto [sign, binding] = spelling;
    if (node.operands.size() == 1) {
      text += sign;
      return write(*node.operands[0], binding, level + 1);
    }
    // A right operand that binds as tightly as its operation is in brackets: a - (b - c). So is a
    // comparison as the left operand of a comparison, which Python would chain: (i < j) == k.
    write(*node.operands[0], binding == kComparisonBinds ? binding + 1 : binding, level + 1);
    text += sign;
    write(*node.operands[1], binding + 1, level + 1);
  }
  void write_list(const ExpressionNode& node, int level) {
    for (std::size_t n = 0; n < node.operands.size(); ++n) {
      if (n > 0) text += ", ";
      write(*node.operands[n], kOrBinds, level + 1);
    }
  }
};

}  // namespace

// ---- leaves ---------------------------------------------------------------------------------

Expression Expression::of_truth(bool value) { return constant_of(Type::kTruth, value ? 1 : 0); }

Expression Expression::of_integer(std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max()) {
    throw qkv::Error(kFunction, "an integer", core::text("must fit in 32 bits, got ", value));
  }
  return constant_of(Type::kInteger, static_cast<double>(value));
}

Expression Expression::of_number(double value) { return constant_of(Type::kNumber, value); }

Expression::Type Expression::type() const noexcept { return node_->type; }
std::string Expression::text() const {
  Writer writer;
  writer.write(*node_, kOrBinds);
  return std::move(writer.text);
}

Symbols::Symbols()
    : s(make(Operation::kScore, Type::kNumber)),
      b(make(Operation::kBatch, Type::kInteger)),
      h(make(Operation::kHead, Type::kInteger)),
      i(make(Operation::kQuery, Type::kInteger)),
      j(make(Operation::kKey, Type::kInteger)),
      Tq(make(Operation::kQueries, Type::kInteger)),
      Tk(make(Operation::kKeys, Type::kInteger)) {}

Captured::Captured(const ConstView& array, const std::string& name) {
  if (!array.given()) throw Error(kFunction, name, "is absent");
  const auto type = [&] {
    switch (array.dtype()) {
      case DType::kBool:
        return Type::kTruth;
      case DType::kInt8:
      case DType::kInt16:
      case DType::kInt32:
      case DType::kInt64:
      case DType::kUInt8:
      case DType::kUInt16:
      case DType::kUInt32:
      case DType::kUInt64:
        return Type::kInteger;
      case DType::kFloat64:
      case DType::kFloat32:
      case DType::kBFloat16:
      case DType::kFloat16:
        return Type::kNumber;
      case DType::kComplex128:
      case DType::kQ8:
      case DType::kNone:
        break;
    }
    throw Error(kFunction, name,
                core::text("must be real, integer or bool, got ", qkv::name_of(array.dtype())),
                ErrorKind::kType);
  }();
  for (int axis = 0; axis < array.rank(); ++axis) {
    if (array.size(axis) <= std::numeric_limits<std::int32_t>::max()) continue;
    throw Error(kFunction, name,
                core::text("must have at most 2^31 - 1 elements on an axis, got ",
                           core::shown(name, array)));
  }
  array_ = std::make_shared<const CapturedArray>(CapturedArray{array, name, type});
}

const ConstView& Captured::view() const noexcept { return array_->view; }
const std::string& Captured::name() const noexcept { return array_->name; }

Expression Captured::at(std::span<const Expression> index) const {
  const int rank = array_->view.rank();
  if (static_cast<int>(index.size()) != rank) {
    throw Error(kFunction, array_->name,
                core::text("has ", rank, " axes, got ", index.size(), " indices"));
  }
  std::vector<Node> operands;
  for (const Expression& x : index) {
    if (x.type() != Type::kInteger) {
      throw Error(kFunction, array_->name,
                  core::text("takes integers as indices, got ", name_of(x.type()), ": ", x.text()));
    }
    operands.push_back(x.shared_node());
  }
  return make(Operation::kElement, array_->type, std::move(operands), array_);
}

// ---- operations -----------------------------------------------------------------------------

Expression operator+(const Expression& a, const Expression& b) {
  return both(Operation::kAdd, a, b);
}
Expression operator-(const Expression& a, const Expression& b) {
  return both(Operation::kSubtract, a, b);
}
Expression operator*(const Expression& a, const Expression& b) {
  return both(Operation::kMultiply, a, b);
}
Expression operator/(const Expression& a, const Expression& b) {
  return both(Operation::kDivide, a, b);
}
Expression operator%(const Expression& a, const Expression& b) {
  return both(Operation::kModulo, a, b);
}
Expression operator-(const Expression& a) { return of_own_type(Operation::kNegate, a); }

Expression operator<(const Expression& a, const Expression& b) {
  return compared(Operation::kLess, a, b, Type::kInteger);
}
Expression operator<=(const Expression& a, const Expression& b) {
  return compared(Operation::kLessEqual, a, b, Type::kInteger);
}
Expression operator>(const Expression& a, const Expression& b) { return b < a; }
Expression operator>=(const Expression& a, const Expression& b) { return b <= a; }
Expression operator==(const Expression& a, const Expression& b) {
  return compared(Operation::kEqual, a, b, Type::kTruth);
}
Expression operator!=(const Expression& a, const Expression& b) {
  return compared(Operation::kNotEqual, a, b, Type::kTruth);
}

Expression operator&&(const Expression& a, const Expression& b) {
  return of_truths(Operation::kAnd, "and", a, b);
}
Expression operator||(const Expression& a, const Expression& b) {
  return of_truths(Operation::kOr, "or", a, b);
}
Expression operator!(const Expression& a) {
  expect_truth(a, "not");
  return make(Operation::kNot, Type::kTruth, {a.shared_node()});
}

Expression where(const Expression& condition, const Expression& a, const Expression& b) {
  expect_truth(condition, "where");
  const Type type = std::max(a.type(), b.type());
  return make(Operation::kWhere, type,
              {condition.shared_node(), converted(a, type), converted(b, type)});
}
Expression abs(const Expression& a) { return of_own_type(Operation::kAbs, a); }
Expression min(const Expression& a, const Expression& b) { return both(Operation::kMin, a, b); }
Expression max(const Expression& a, const Expression& b) { return both(Operation::kMax, a, b); }

Expression exp(const Expression& a) { return of_number(Operation::kExp, a); }
Expression log(const Expression& a) { return of_number(Operation::kLog, a); }
Expression sqrt(const Expression& a) { return of_number(Operation::kSqrt, a); }
Expression tanh(const Expression& a) { return of_number(Operation::kTanh, a); }
Expression sin(const Expression& a) { return of_number(Operation::kSin, a); }
Expression cos(const Expression& a) { return of_number(Operation::kCos, a); }
Expression floor(const Expression& a) { return of_number(Operation::kFloor, a); }

Expression to_number(const Expression& a) { return Expression(converted(a, Type::kNumber)); }
Expression to_integer(const Expression& a) {
  if (a.type() == Type::kInteger) return a;
  return make(Operation::kToInteger, Type::kInteger, {a.shared_node()});
}

}  // namespace qkv
