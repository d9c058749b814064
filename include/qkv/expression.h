// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSION_H_
#define QKV_EXPRESSION_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <qkv/export.h>
#include <qkv/mods.h>
#include <qkv/view.h>

namespace qkv {

namespace detail {
struct ExpressionNode;
struct CapturedArray;
}  // namespace detail

// A score or a mask as a list of operations, for programs that get it at run time: the command
// line, another language. A C++ function (mods.h) does the same where it can be compiled.
//   const Symbols x;
//   const Captured slope(slopes, "slope");                       // [H]
//   options.mods = {score_mod(x.s - slope(x.h) * abs(x.i - x.j))};
//   options.masks = {mask_mod(x.i / 16 == x.j / 16)};
// An expression is a number (of the accumulators' type), an integer of 32 bits, which wraps around,
// or a truth value. Operands are converted to the higher of their types: truth value < integer <
// number. An expression is evaluated for whole rows of pairs, masked ones included, and has the
// same bits on every CPU.
class QKV_API Expression {
 public:
  enum class Type : std::uint8_t { kTruth, kInteger, kNumber };

  // A constant. Throws Error for an integer that does not fit in 32 bits.
  template <class N>
    requires std::is_arithmetic_v<N>
  Expression(N value)  // NOLINT(google-explicit-constructor)
      : Expression(constant(value)) {}
  explicit Expression(std::shared_ptr<const detail::ExpressionNode> node)
      : node_(std::move(node)) {}

  Type type() const noexcept;
  // The expression as it is written in Python, such as "s - slope[h] * abs(i - j)"; in a large one
  // some parts are replaced by "...".
  std::string text() const;
  const detail::ExpressionNode& node() const noexcept { return *node_; }
  const std::shared_ptr<const detail::ExpressionNode>& shared_node() const noexcept {
    return node_;
  }

 private:
  template <class N>
  static Expression constant(N value) {
    if constexpr (std::same_as<N, bool>) {
      return of_truth(value);
    } else if constexpr (std::integral<N>) {
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
      if constexpr (std::unsigned_integral<N> && sizeof(N) >= sizeof(kMost)) {
        if (value > static_cast<std::uint64_t>(kMost)) return of_integer(kMost);
      }
      return of_integer(static_cast<std::int64_t>(value));
    } else {
      return of_number(static_cast<double>(value));
    }
  }
  static Expression of_truth(bool value);
  static Expression of_integer(std::int64_t value);
  static Expression of_number(double value);

  std::shared_ptr<const detail::ExpressionNode> node_;
};

// The score s and the position of a pair: batch entry b (or packed sequence b), query head h, query
// i of Tq and key j of Tk (of the sequence, if packed).
struct QKV_API Symbols {
  Symbols();
  Expression s, b, h, i, j, Tq, Tk;
};

// An array that expressions read: real, integer or bool, of any strides. It is not copied: its
// memory has to stay as long as a mod that reads it, and must not change during a call.
class QKV_API Captured {
 public:
  // `name` stands for the array in texts and errors. Throws Error for an array that is absent, of
  // another type, or of more than 2^31 - 1 elements on an axis.
  explicit Captured(const ConstView& array, const std::string& name = "array");

  // The element at `index`, one integer for each axis. Throws Error for another number or type of
  // indices. A call throws Error, with the position, if an index of any pair is outside the array.
  template <class... Places>
  Expression operator()(const Places&... index) const {
    const std::array<Expression, sizeof...(index)> all{Expression(index)...};
    return at(all);
  }
  Expression at(std::span<const Expression> index) const;

  const ConstView& view() const noexcept;
  const std::string& name() const noexcept;
  // The description of the array that expressions share.
  const std::shared_ptr<const detail::CapturedArray>& shared_array() const noexcept {
    return array_;
  }

 private:
  std::shared_ptr<const detail::CapturedArray> array_;
};

// A request for the gradient of a captured array of a real dtype. `to` has the array's shape, and
// either its dtype or float64. The gradient is summed in float64.
struct CapturedGradient {
  Captured of;
  View to;
};

QKV_API Expression operator+(const Expression& a, const Expression& b);
QKV_API Expression operator-(const Expression& a, const Expression& b);
QKV_API Expression operator*(const Expression& a, const Expression& b);
// The quotient of two integers is an integer, rounded down. A call throws Error if it divides an
// integer by 0.
QKV_API Expression operator/(const Expression& a, const Expression& b);
// a - b floor(a / b), which has the sign of b.
QKV_API Expression operator%(const Expression& a, const Expression& b);
QKV_API Expression operator-(const Expression& a);

QKV_API Expression operator<(const Expression& a, const Expression& b);
QKV_API Expression operator<=(const Expression& a, const Expression& b);
QKV_API Expression operator>(const Expression& a, const Expression& b);
QKV_API Expression operator>=(const Expression& a, const Expression& b);
QKV_API Expression operator==(const Expression& a, const Expression& b);
QKV_API Expression operator!=(const Expression& a, const Expression& b);

// Truth values only; both sides are evaluated.
QKV_API Expression operator&&(const Expression& a, const Expression& b);
QKV_API Expression operator||(const Expression& a, const Expression& b);
QKV_API Expression operator!(const Expression& a);

// a where `condition` is true, else b; both are evaluated.
QKV_API Expression where(const Expression& condition, const Expression& a, const Expression& b);
QKV_API Expression abs(const Expression& a);
QKV_API Expression min(const Expression& a, const Expression& b);
QKV_API Expression max(const Expression& a, const Expression& b);

// Functions of numbers.
QKV_API Expression exp(const Expression& a);
QKV_API Expression log(const Expression& a);
QKV_API Expression sqrt(const Expression& a);
QKV_API Expression tanh(const Expression& a);
QKV_API Expression sin(const Expression& a);
QKV_API Expression cos(const Expression& a);
QKV_API Expression floor(const Expression& a);

QKV_API Expression to_number(const Expression& a);
// Rounds towards 0; numbers outside of 32 bits become the nearest integer, NaN becomes 0.
QKV_API Expression to_integer(const Expression& a);

// A change to the scores, like score_mod() of a function, with the expression's derivative. The
// derivative of abs at 0, of floor and of conditions is 0; where the arguments of min(a, b) or
// max(a, b) are equal, the derivative is that of a. Throws Error for a truth value.
QKV_API ScoreMod score_mod(const Expression& score);
// A mask: true for a pair that may attend. Throws Error for an expression that is no truth value,
// or that contains the score.
QKV_API MaskMod mask_mod(const Expression& mask);

}  // namespace qkv

#endif  // QKV_EXPRESSION_H_
