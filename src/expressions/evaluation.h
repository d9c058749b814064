// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_EVALUATION_H_
#define QKV_EXPRESSIONS_EVALUATION_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/elementary.h"
#include "core/storage.h"
#include "expressions/captured_sums.h"
#include "expressions/operations.h"
#include "expressions/places.h"
#include "expressions/program.h"

// Evaluates programs for rows of pairs: each step in turn, for all keys of a piece of the row.
// Functions of this file are inlined into instances, each of which is compiled for a CPU target.
namespace qkv::expressions {

// The most keys of a piece.
inline constexpr Index kPiece = 512;

// The value of a step: an array with a value for each key of a piece, one value for the row, or a
// linear integer's value for the first key. Truth values are integers, 0 or 1.
template <class T>
struct Value {
  const T* numbers = nullptr;
  const std::int32_t* integers = nullptr;
  T number{};
  std::int32_t integer = 0;
};

template <class V>
struct PerKey {
  const V* values;
  QKV_INLINED V operator[](Index c) const { return values[c]; }
};
template <class V>
struct PerRow {
  V value;
  QKV_INLINED V operator[](Index) const { return value; }
};
// An integer that grows by `step` from key to key, or is constant. It wraps around.
struct Linear {
  std::uint32_t first;
  std::uint32_t step;
  QKV_INLINED std::int32_t operator[](Index c) const {
    return static_cast<std::int32_t>(first + step * static_cast<std::uint32_t>(c));
  }
};

// ---- the evaluation -------------------------------------------------------------------------

template <class T>
class Evaluation {
 public:
  explicit Evaluation(const Program& program)
      : program_(program),
        values_(program.steps().size()),
        numbers_(program.steps().size() * kStride),
        integers_(program.steps().size() * kStride) {}

  // Evaluates all steps for `count` keys from `place` on, at most kPiece, whose scores are s (null
  // for a mask). If `result` is not null, the last step may store its numbers there; it may be s if
  // no go_back() follows.
  QKV_INLINED void run(const RowPlace& place, Index count, const T* s, T* result) {
    result_ = result;
    for (std::size_t n = 0; n < values_.size(); ++n) evaluate(n, place, count, s);
  }
  const Value<T>& result() const { return values_.back(); }
  // The integer or truth value of a step for key c of the piece.
  std::int32_t integer(std::size_t n, Index c) const {
    return has_array(n) ? values_[n].integers[c] : linear(n)[c];
  }

  // After run(), begin_back() and then go_back() compute gradients: of the scores if `of_scores`,
  // of captured numbers if `of_captured`. The gradients of the result, `result_gradients`, must not
  // change before score_gradients() and add_captured() have been called.
  void begin_back(const T* result_gradients, bool of_scores, bool of_captured) {
    of_scores_ = of_scores;
    of_captured_ = of_captured;
    if (gradients_.empty()) gradients_.resize(values_.size() * kStride);
    gradient_.assign(values_.size(), nullptr);
    if (has_gradient(values_.size() - 1)) gradient_.back() = result_gradients;
  }
  QKV_INLINED void go_back(Index count) {
    for (std::size_t n = values_.size(); n-- > 0;) {
      if (gradient_[n] != nullptr) go_back(n, count);
    }
  }
  // The gradients of the scores; null if the result does not depend on the scores.
  const T* score_gradients() const {
    for (std::size_t n = 0; n < values_.size(); ++n) {
      if (step(n).operation == Operation::kScore) return gradient_[n];
    }
    return nullptr;
  }
  // Adds the gradients of captured numbers to the sums of their arrays.
  void add_captured(Index count, std::span<CapturedSums> sums) {
    for (std::size_t n = 0; n < values_.size(); ++n) {
      if (step(n).operation != Operation::kElement || gradient_[n] == nullptr) continue;
      for (CapturedSums& to : sums) {
        if (to.array() == step(n).array) scatter(n, count, to);
      }
    }
  }

 private:
  // At least a cache line more than a piece, so that steps do not map to the same cache sets.
  static constexpr std::size_t kStride = static_cast<std::size_t>(kPiece) + 16;

  const Step& step(std::size_t n) const { return program_.steps()[n]; }
  std::size_t operand(const Step& x, int n) const {
    return static_cast<std::size_t>(x.operands[static_cast<std::size_t>(n)]);
  }
  bool has_gradient(std::size_t n) const {
    return step(n).type == Type::kNumber &&
           ((of_scores_ && step(n).of_score) || (of_captured_ && step(n).of_captured));
  }
  // Whether the step has a value for every key of a piece.
  bool has_array(std::size_t n) const { return step(n).per_key && !step(n).is_linear; }
  Linear linear(std::size_t n) const {
    return {static_cast<std::uint32_t>(values_[n].integer),
            static_cast<std::uint32_t>(step(n).key_step)};
  }

  // Calls f with the values of step n, of type V.
  template <class V, class F>
  QKV_INLINED void with(std::size_t n, const F& f) const {
    const Value<T>& x = values_[n];
    if constexpr (std::is_same_v<V, T>) {
      has_array(n) ? f(PerKey<V>{x.numbers}) : f(PerRow<V>{x.number});
    } else {
      has_array(n) ? f(PerKey<V>{x.integers}) : f(linear(n));
    }
  }
  // Stores f(c), or f(0) if there is no array of values, as the value of step n.
  template <class F>
  QKV_INLINED void put(std::size_t n, Index count, const F& f) {
    // Integers of 32 bits that grow with the key are fastest with a counter of their size.
    const auto keys = static_cast<std::int32_t>(count);
    using V = std::decay_t<decltype(f(Index{0}))>;
    Value<T>& to = values_[n];
    if constexpr (std::is_same_v<V, T>) {
      if (!step(n).per_key) {
        to.number = f(0);
        return;
      }
      const bool is_result = result_ != nullptr && n + 1 == values_.size();
      T* const values = is_result ? result_ : numbers_.data() + n * kStride;
      to.numbers = values;
      QKV_PLAIN_LOOP
      for (std::int32_t c = 0; c < keys; ++c) values[c] = f(c);
    } else {
      if (!has_array(n)) {
        to.integer = f(0);
        return;
      }
      std::int32_t* const values = integers_.data() + n * kStride;
      to.integers = values;
      QKV_PLAIN_LOOP
      for (std::int32_t c = 0; c < keys; ++c) values[c] = f(c);
    }
  }
  // Stores f of the operand or operands, which have type V, as the value of step n.
  template <class V, class F>
  QKV_INLINED void unary(std::size_t n, Index count, const F& f) {
    with<V>(operand(step(n), 0),
            [&](const auto& a) { put(n, count, [&](Index c) { return f(a[c]); }); });
  }
  template <class V, class F>
  QKV_INLINED void binary(std::size_t n, Index count, const F& f) {
    with<V>(operand(step(n), 0), [&](const auto& a) {
      with<V>(operand(step(n), 1),
              [&](const auto& b) { put(n, count, [&](Index c) { return f(a[c], b[c]); }); });
    });
  }
  // The operands may be numbers or integers.
  template <class F>
  QKV_INLINED void unary_of_either(std::size_t n, Index count, const F& f) {
    if (step(n).operands_type == Type::kNumber) return unary<T>(n, count, f);
    unary<std::int32_t>(n, count, f);
  }
  template <class F>
  QKV_INLINED void binary_of_either(std::size_t n, Index count, const F& f) {
    if (step(n).operands_type == Type::kNumber) return binary<T>(n, count, f);
    binary<std::int32_t>(n, count, f);
  }
  template <class V>
  QKV_INLINED void choose(std::size_t n, Index count) {
    with<std::int32_t>(operand(step(n), 0), [&](const auto& condition) {
      with<V>(operand(step(n), 1), [&](const auto& a) {
        with<V>(operand(step(n), 2), [&](const auto& b) {
          put(n, count, [&](Index c) { return condition[c] != 0 ? a[c] : b[c]; });
        });
      });
    });
  }

  // The divisor of step n if it is an integer that all keys share, else 0.
  std::int32_t row_divisor(std::size_t n) const {
    const std::size_t divisor = operand(step(n), 1);
    if (step(n).type != Type::kInteger || step(divisor).per_key) return 0;
    return values_[divisor].integer;
  }
  // Divides integers by a positive integer, rounded down, or computes remainders, in loops that
  // vectorise, unlike division of integers.
  QKV_INLINED void divide_by(std::size_t n, Index count, std::int32_t by) {
    const bool is_quotient = step(n).operation == Operation::kDivide;
    with<std::int32_t>(operand(step(n), 0), [&](const auto& a) {
      if ((by & (by - 1)) == 0) {
        const int shift = std::countr_zero(static_cast<std::uint32_t>(by));
        is_quotient ? put(n, count, [&](Index c) { return a[c] >> shift; })
                    : put(n, count, [&](Index c) { return a[c] & (by - 1); });
        return;
      }
      // A quotient of 32-bit integers that is not an integer differs from the nearest integer by
      // more than its rounding error in float64.
      const double divisor = by;
      const auto rounded_down = [&](std::int32_t x) {
        const auto truncated = static_cast<std::int32_t>(static_cast<double>(x) / divisor);
        return truncated - std::int32_t{truncated * by > x};
      };
      is_quotient ? put(n, count, [&](Index c) { return rounded_down(a[c]); })
                  : put(n, count, [&](Index c) { return a[c] - rounded_down(a[c]) * by; });
    });
  }

  QKV_INLINED void evaluate(std::size_t n, const RowPlace& place, Index count, const T* s) {
    const Step& x = step(n);
    const At& at = place.at;
    const auto truth = [](bool value) { return std::int32_t{value}; };
    switch (x.operation) {
      case Operation::kScore:
        values_[n].numbers = s;
        return;
      case Operation::kBatch:
        return put(n, count, [&](Index) { return at.b; });
      case Operation::kHead:
        return put(n, count, [&](Index) { return at.h; });
      case Operation::kQuery:
        return put(n, count, [&](Index) { return at.i; });
      case Operation::kKey:
        return put(n, count, [&](Index c) { return at.j + static_cast<std::int32_t>(c); });
      case Operation::kQueries:
        return put(n, count, [&](Index) { return place.lengths.Tq; });
      case Operation::kKeys:
        return put(n, count, [&](Index) { return place.lengths.Tk; });
      case Operation::kConstant:
        values_[n].number = static_cast<T>(x.number);
        values_[n].integer = x.type == Type::kNumber ? 0 : static_cast<std::int32_t>(x.number);
        return;
      case Operation::kElement:
        return load(n, count);
      case Operation::kAdd:
        return binary_of_either(n, count, [](auto a, auto b) { return add(a, b); });
      case Operation::kSubtract:
        return binary_of_either(n, count, [](auto a, auto b) { return subtract(a, b); });
      case Operation::kMultiply:
        return binary_of_either(n, count, [](auto a, auto b) { return multiply(a, b); });
      case Operation::kDivide:
        if (const std::int32_t by = row_divisor(n); by > 0) return divide_by(n, count, by);
        return binary_of_either(n, count, [](auto a, auto b) { return divide(a, b); });
      case Operation::kModulo:
        if (const std::int32_t by = row_divisor(n); by > 0) return divide_by(n, count, by);
        return binary_of_either(n, count, [](auto a, auto b) { return modulo(a, b); });
      case Operation::kMin:
        return binary_of_either(n, count, [](auto a, auto b) { return b < a ? b : a; });
      case Operation::kMax:
        return binary_of_either(n, count, [](auto a, auto b) { return a < b ? b : a; });
      case Operation::kLess:
        return binary_of_either(n, count, [&](auto a, auto b) { return truth(a < b); });
      case Operation::kLessEqual:
        return binary_of_either(n, count, [&](auto a, auto b) { return truth(a <= b); });
      case Operation::kEqual:
        return binary_of_either(n, count, [&](auto a, auto b) { return truth(a == b); });
      case Operation::kNotEqual:
        return binary_of_either(n, count, [&](auto a, auto b) { return truth(a != b); });
      case Operation::kAnd:
        return binary<std::int32_t>(n, count, [](auto a, auto b) { return a & b; });
      case Operation::kOr:
        return binary<std::int32_t>(n, count, [](auto a, auto b) { return a | b; });
      case Operation::kNot:
        return unary<std::int32_t>(n, count, [](auto a) { return a ^ 1; });
      case Operation::kWhere:
        return x.type == Type::kNumber ? choose<T>(n, count) : choose<std::int32_t>(n, count);
      case Operation::kNegate:
        return unary_of_either(n, count, [](auto a) { return negated(a); });
      case Operation::kAbs:
        return unary_of_either(n, count, [](auto a) { return absolute(a); });
      case Operation::kExp:
        return unary<T>(n, count, [](T a) { return core::portable_exp(a); });
      case Operation::kLog:
        return unary<T>(n, count, [](T a) { return core::portable_log(a); });
      case Operation::kSqrt:
        return unary<T>(n, count, [](T a) { return std::sqrt(a); });
      case Operation::kTanh:
        return unary<T>(n, count, [](T a) { return tanh_of(a); });
      case Operation::kSin:
        return unary<T>(n, count,
                        [](T a) { return static_cast<T>(core::portable_sin_cos(a).sin); });
      case Operation::kCos:
        return unary<T>(n, count,
                        [](T a) { return static_cast<T>(core::portable_sin_cos(a).cos); });
      case Operation::kFloor:
        return unary<T>(n, count, [](T a) { return std::floor(a); });
      case Operation::kToNumber:
        return unary<std::int32_t>(n, count, [](auto a) { return static_cast<T>(a); });
      case Operation::kToInteger:
        if (x.operands_type != Type::kNumber) {
          return unary<std::int32_t>(n, count, [](auto a) { return a; });
        }
        return unary<T>(n, count, [](T a) { return integer_of(a); });
    }
  }

  struct Axis {
    std::int32_t begin;
    std::int32_t size;
    Index stride;
  };
  // Computes the offsets of the elements that step n reads, in an array whose indices on each axis
  // are begin .. begin+size-1. Other indices are clamped to these.
  template <class Offset, class AxisOf>
  QKV_INLINED void find_offsets(std::size_t n, Index count, Offset* offsets,
                                const AxisOf& axis_of) const {
    const Index elements = step(n).per_key ? count : 1;
    std::fill_n(offsets, elements, Offset{0});
    for (int axis = 0; axis < step(n).array->view.rank(); ++axis) {
      const Axis of = axis_of(axis);
      with<std::int32_t>(operand(step(n), axis), [&](const auto& index) {
        const auto stride = static_cast<Offset>(of.stride);
        QKV_PLAIN_LOOP
        for (Index c = 0; c < elements; ++c) {
          const std::int32_t at = index[c] < of.begin ? 0 : index[c] - of.begin;
          offsets[c] += stride * (at < of.size ? at : of.size - 1);
        }
      });
    }
  }

  // The offset of the first key's element, and the distance from each key's element to the next.
  struct Line {
    Index first = 0;
    Index stride = 0;
  };
  // Finds the line on which the elements of step n lie. Returns false unless all indices are linear
  // in the key and within the array.
  template <class AxisOf>
  bool find_line(std::size_t n, Index count, Line& line, const AxisOf& axis_of) const {
    for (int axis = 0; axis < step(n).array->view.rank(); ++axis) {
      const std::size_t index = operand(step(n), axis);
      const Step& x = step(index);
      if (!x.is_linear) return false;
      const Axis of = axis_of(axis);
      const Index first = values_[index].integer - static_cast<Index>(of.begin);
      const Index last = first + (count - 1) * x.key_step;
      if (std::min(first, last) < 0 || std::max(first, last) >= of.size) return false;
      line.first += of.stride * first;
      line.stride += of.stride * x.key_step;
    }
    return true;
  }

  // Loads elements of a captured array. Indices were checked before the call (indices.h), and are
  // clamped to the array in case captured indices have changed since.
  QKV_INLINED void load(std::size_t n, Index count) {
    const Step& x = step(n);
    const ConstView& view = x.array->view;
    const auto axis_of = [&](int axis) {
      return Axis{0, static_cast<std::int32_t>(view.size(axis)), view.stride(axis)};
    };
    if (view.element_count() == 0) return;
    // Tables are often read along a line, such as at j - i or i - j.
    Line line;
    const bool is_line = x.per_key && find_line(n, count, line, axis_of);
    if (view.dtype() == dtype_of<T>) {
      const T* const from = static_cast<const T*>(view.data());
      const T* const first = from + line.first;
      if (is_line && line.stride == 1) {
        values_[n].numbers = first;
        return;
      }
      if (is_line && line.stride == -1) return put(n, count, [&](Index c) { return first[-c]; });
      if (const int axis = only_axis(n); axis >= 0 && has_short_offsets(view)) {
        const T* const line_begin = from + row_offset(n, axis);
        const auto size = static_cast<std::int32_t>(view.size(axis));
        const auto stride = static_cast<std::int32_t>(view.stride(axis));
        return with<std::int32_t>(operand(x, axis), [&](const auto& index) {
          put(n, count, [&](Index c) { return line_begin[stride * clamped(index[c], size)]; });
        });
      }
      if (has_short_offsets(view)) {
        std::int32_t offsets[kPiece];
        find_offsets(n, count, offsets, axis_of);
        return put(n, count, [&](Index c) { return from[offsets[c]]; });
      }
    }
    if (is_line && line.stride == 1 && view.dtype() == DType::kInt32) {
      values_[n].integers = static_cast<const std::int32_t*>(view.data()) + line.first;
      return;
    }
    if (is_line && line.stride == 1) {
      return convert(n, count, [&](Index c) { return line.first + c; });
    }
    Index offsets[kPiece];
    find_offsets(n, count, offsets, axis_of);
    convert(n, count, [&](Index c) { return offsets[c]; });
  }
  // An index, clamped to an axis.
  QKV_INLINED static std::int32_t clamped(std::int32_t index, std::int32_t size) {
    const std::int32_t at = index < 0 ? 0 : index;
    return at < size ? at : size - 1;
  }
  // The only axis whose index differs from key to key; -1 if there are several, or none.
  int only_axis(std::size_t n) const {
    int axis = -1;
    for (int other = 0; other < step(n).array->view.rank(); ++other) {
      if (!step(operand(step(n), other)).per_key) continue;
      if (axis >= 0) return -1;
      axis = other;
    }
    return axis;
  }
  // The part of an element's offset that all keys share: that of all axes except `but`.
  Index row_offset(std::size_t n, int but) const {
    const ConstView& view = step(n).array->view;
    Index offset = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
      if (axis == but) continue;
      const std::int32_t index = values_[operand(step(n), axis)].integer;
      offset += view.stride(axis) * clamped(index, static_cast<std::int32_t>(view.size(axis)));
    }
    return offset;
  }
  // Whether the offsets of all elements fit in 32 bits.
  static bool has_short_offsets(const ConstView& view) {
    Index reach = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
      reach += std::abs(view.stride(axis)) * (view.size(axis) - 1);
    }
    return reach < Index{1} << 31;
  }
  // Loads the elements at offset_of(c), of any type.
  template <class F>
  QKV_INLINED void convert(std::size_t n, Index count, const F& offset_of) {
    const ConstView& view = step(n).array->view;
    core::visit_dtype(view.dtype(), [&]<class Stored>(Stored*) {
      const Stored* const from = static_cast<const Stored*>(view.data());
      if constexpr (std::is_same_v<Stored, bool>) {
        // An array of bool may hold bytes other than 0 and 1.
        const auto* bytes = static_cast<const std::uint8_t*>(view.data());
        put(n, count, [&](Index c) { return std::int32_t{bytes[offset_of(c)] != 0}; });
      } else if constexpr (std::is_integral_v<Stored>) {
        put(n, count, [&](Index c) { return static_cast<std::int32_t>(from[offset_of(c)]); });
      } else {
        put(n, count, [&](Index c) { return core::to_accumulator<T>(from[offset_of(c)]); });
      }
    });
  }

  // ---- derivatives ----------------------------------------------------------------------------

  // Adds the gradients of the elements that step n reads to `to`, in order of keys. If all keys
  // read one element, key c of the piece goes to partial sum c mod 8, and the eight sums are then
  // added.
  void scatter(std::size_t n, Index count, CapturedSums& to) {
    const T* const own = gradient_[n];
    const auto axis_of = [&](int axis) {
      return Axis{static_cast<std::int32_t>(to.begin(axis)),
                  static_cast<std::int32_t>(to.size(axis)), to.stride(axis)};
    };
    double* const sums = to.sums();
    // Along a line, gradients of 0 are added, too: they change no sum.
    if (Line line; step(n).per_key && find_line(n, count, line, axis_of)) {
      double* const at = sums + line.first;
      if (line.stride == 1) {
        QKV_PLAIN_LOOP
        for (Index c = 0; c < count; ++c) at[c] += static_cast<double>(own[c]);
        return;
      }
      if (line.stride == -1) {
        QKV_PLAIN_LOOP
        for (Index c = 0; c < count; ++c) at[-c] += static_cast<double>(own[c]);
        return;
      }
    }
    Index offsets[kPiece];
    offsets[0] = 0;  // gcc 12 does not see that count is above 0
    find_offsets(n, count, offsets, axis_of);
    if (step(n).per_key) {
      // Neighbouring keys often read one element, whose sum then stays in a register.
      Index at = offsets[0];
      double sum = sums[at];
      for (Index c = 0; c < count; ++c) {
        if (own[c] == 0) continue;
        if (offsets[c] != at) {
          sums[at] = sum;
          at = offsets[c];
          sum = sums[at];
        }
        sum += static_cast<double>(own[c]);
      }
      sums[at] = sum;
      return;
    }
    constexpr Index kParts = 8;
    double parts[kParts] = {};
    Index c = 0;
    for (; c + kParts <= count; c += kParts) {
      for (Index m = 0; m < kParts; ++m) parts[m] += static_cast<double>(own[c + m]);
    }
    for (; c < count; ++c) parts[c % kParts] += static_cast<double>(own[c]);
    sums[offsets[0]] += ((parts[0] + parts[4]) + (parts[1] + parts[5])) +
                        ((parts[2] + parts[6]) + (parts[3] + parts[7]));
  }

  // Adds own[c] * f(c), where `own` is the gradient of step n, to the gradient of its operand k;
  // the first such term becomes the gradient. An own[c] of 0, as on the side of a condition that is
  // not taken, adds nothing, whatever f(c) is.
  template <class F>
  QKV_INLINED void add_to(std::size_t n, int k, Index count, const F& f) {
    const std::size_t to = operand(step(n), k);
    if (!has_gradient(to)) return;
    const T* const own = gradient_[n];
    const T* const before = gradient_[to];
    T* const sums = gradients_.data() + to * kStride;
    gradient_[to] = sums;
    const auto keys = static_cast<std::int32_t>(count);
    const auto part = [&](Index c) { return own[c] == 0 ? T(0) : own[c] * f(c); };
    if (before == nullptr) {
      QKV_PLAIN_LOOP
      for (std::int32_t c = 0; c < keys; ++c) sums[c] = part(c);
      return;
    }
    QKV_PLAIN_LOOP
    for (std::int32_t c = 0; c < keys; ++c) sums[c] = before[c] + part(c);
  }
  // Adds the gradient of step n to the gradient of its operand k.
  QKV_INLINED void pass_to(std::size_t n, int k, Index count) {
    const std::size_t to = operand(step(n), k);
    if (has_gradient(to) && gradient_[to] == nullptr) {
      gradient_[to] = gradient_[n];
    } else {
      add_to(n, k, count, [](Index) { return T(1); });
    }
  }
  // Calls f(a, b) with the numbers of a step's two operands, or f(a, a) if there is one.
  template <class F>
  QKV_INLINED void with_numbers(std::size_t n, const F& f) {
    with<T>(operand(step(n), 0), [&](const auto& a) {
      with<T>(operand(step(n), step(n).operands.size() > 1 ? 1 : 0),
              [&](const auto& b) { f(a, b); });
    });
  }

  QKV_INLINED void go_back(std::size_t n, Index count) {
    const auto pass_to_chosen = [&](auto chooses_second) {
      with_numbers(n, [&](const auto& a, const auto& b) {
        add_to(n, 0, count, [&](Index c) { return chooses_second(a[c], b[c]) ? T(0) : T(1); });
        add_to(n, 1, count, [&](Index c) { return chooses_second(a[c], b[c]) ? T(1) : T(0); });
      });
    };
    switch (step(n).operation) {
      case Operation::kAdd:
        pass_to(n, 0, count);
        pass_to(n, 1, count);
        return;
      case Operation::kSubtract:
        pass_to(n, 0, count);
        add_to(n, 1, count, [](Index) { return T(-1); });
        return;
      case Operation::kMultiply:
        return with_numbers(n, [&](const auto& a, const auto& b) {
          add_to(n, 0, count, [&](Index c) { return b[c]; });
          add_to(n, 1, count, [&](Index c) { return a[c]; });
        });
      case Operation::kDivide:
        return with_numbers(n, [&](const auto& a, const auto& b) {
          add_to(n, 0, count, [&](Index c) { return T(1) / b[c]; });
          add_to(n, 1, count, [&](Index c) { return -(a[c] / b[c]) / b[c]; });
        });
      case Operation::kModulo:
        return with_numbers(n, [&](const auto& a, const auto& b) {
          pass_to(n, 0, count);
          add_to(n, 1, count, [&](Index c) { return -std::floor(a[c] / b[c]); });
        });
      case Operation::kMin:
        return pass_to_chosen([](T a, T b) { return b < a; });
      case Operation::kMax:
        return pass_to_chosen([](T a, T b) { return a < b; });
      case Operation::kWhere:
        return with<std::int32_t>(operand(step(n), 0), [&](const auto& condition) {
          add_to(n, 1, count, [&](Index c) { return condition[c] != 0 ? T(1) : T(0); });
          add_to(n, 2, count, [&](Index c) { return condition[c] != 0 ? T(0) : T(1); });
        });
      case Operation::kNegate:
        return add_to(n, 0, count, [](Index) { return T(-1); });
      case Operation::kAbs:
        return with_numbers(n, [&](const auto& a, const auto&) {
          add_to(n, 0, count, [&](Index c) { return a[c] > 0 ? T(1) : a[c] < 0 ? T(-1) : T(0); });
        });
      case Operation::kExp:
        return with<T>(
            n, [&](const auto& own) { add_to(n, 0, count, [&](Index c) { return own[c]; }); });
      case Operation::kLog:
        return with_numbers(n, [&](const auto& a, const auto&) {
          add_to(n, 0, count, [&](Index c) { return T(1) / a[c]; });
        });
      case Operation::kSqrt:
        return with<T>(n, [&](const auto& own) {
          add_to(n, 0, count, [&](Index c) { return T(0.5) / own[c]; });
        });
      case Operation::kTanh:
        return with<T>(n, [&](const auto& own) {
          add_to(n, 0, count, [&](Index c) { return T(1) - own[c] * own[c]; });
        });
      case Operation::kSin:
        return with_numbers(n, [&](const auto& a, const auto&) {
          add_to(n, 0, count,
                 [&](Index c) { return static_cast<T>(core::portable_sin_cos(a[c]).cos); });
        });
      case Operation::kCos:
        return with_numbers(n, [&](const auto& a, const auto&) {
          add_to(n, 0, count,
                 [&](Index c) { return static_cast<T>(-core::portable_sin_cos(a[c]).sin); });
        });
      // Steps whose derivative is 0, leaves, and steps without numbers as operands.
      case Operation::kFloor:
      case Operation::kScore:
      case Operation::kBatch:
      case Operation::kHead:
      case Operation::kQuery:
      case Operation::kKey:
      case Operation::kQueries:
      case Operation::kKeys:
      case Operation::kConstant:
      case Operation::kElement:
      case Operation::kLess:
      case Operation::kLessEqual:
      case Operation::kEqual:
      case Operation::kNotEqual:
      case Operation::kAnd:
      case Operation::kOr:
      case Operation::kNot:
      case Operation::kToNumber:
      case Operation::kToInteger:
        return;
    }
  }

  const Program& program_;
  std::vector<Value<T>> values_;
  std::vector<T> numbers_;
  std::vector<std::int32_t> integers_;
  T* result_ = nullptr;
  std::vector<T> gradients_;
  // The gradient of each step, which may be an array of another step; null if it has none.
  std::vector<const T*> gradient_;
  bool of_scores_ = false;    // scores have gradients
  bool of_captured_ = false;  // captured numbers have gradients
};

// Returns this thread's evaluation of a program. Each thread keeps those of the last kMost programs
// that were new to it, so that their arrays are not allocated again.
template <class T>
Evaluation<T>& evaluation_of(const Program& program) {
  struct Known {
    std::uint64_t id;
    std::unique_ptr<Evaluation<T>> evaluation;
  };
  constexpr std::size_t kMost = 8;
  thread_local std::vector<Known> known;
  for (Known& x : known) {
    if (x.id == program.id()) return *x.evaluation;
  }
  if (known.size() == kMost) known.erase(known.begin());
  return *known.emplace_back(program.id(), std::make_unique<Evaluation<T>>(program)).evaluation;
}

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_EVALUATION_H_
