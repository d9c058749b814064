// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/expression.h>

#include "core/instances.h"
#include "expressions/captured_gradients.h"
#include "expressions/node.h"

// Tests that values and derivatives of random expressions agree with a recursive evaluation in
// float64, and are bit-identical on all CPU targets and however a row is cut into pieces.
namespace qkv::test {
namespace {

using detail::ExpressionNode;
using detail::Operation;
using Type = Expression::Type;

constexpr int kTable = 9;  // elements of each captured array
constexpr detail::Lengths kLengths{53, 1201};

struct Arrays {
  std::vector<double> numbers{0.5, -1.25, 3, 0, 2.5, -0.75, 1, 8, -4};
  std::vector<std::int64_t> integers{3, 0, 8, 1, 5, 2, 7, 4, 6};
};

// ---- the meaning ----------------------------------------------------------------------------

// The value of an expression and, if it is a number, its derivative (`slope`) with respect to the
// score or to an element of Arrays::numbers.
struct Meaning {
  double value = 0;
  double slope = 0;
};

// Returns x wrapped around to the 32 bits of an integer.
double wrap(double x) {
  const double multiple = std::floor((x + 0x1p31) / 0x1p32);
  return x - multiple * 0x1p32;
}

constexpr int kOfScore = -1;  // `element` of meaning_of() for derivatives by the score

// Evaluates x at a pair with score s. The slope is the derivative with respect to element `element`
// of arrays.numbers, or to the score for kOfScore.
Meaning meaning_of(const ExpressionNode& x, const At& at, double s, const Arrays& arrays,
                   int element = kOfScore) {
  std::vector<Meaning> of;
  of.reserve(x.operands.size());
  for (const auto& operand : x.operands) {
    of.push_back(meaning_of(*operand, at, s, arrays, element));
  }
  const auto integer = [&](double value) -> Meaning { return {wrap(value), 0}; };
  const bool whole = x.type == Type::kInteger;
  const Meaning a = !of.empty() ? of[0] : Meaning{};
  const Meaning b = of.size() > 1 ? of[1] : Meaning{};
  switch (x.operation) {
    case Operation::kScore:
      return {s, element == kOfScore ? 1.0 : 0.0};
    case Operation::kBatch:
      return {static_cast<double>(at.b), 0};
    case Operation::kHead:
      return {static_cast<double>(at.h), 0};
    case Operation::kQuery:
      return {static_cast<double>(at.i), 0};
    case Operation::kKey:
      return {static_cast<double>(at.j), 0};
    case Operation::kQueries:
      return {static_cast<double>(kLengths.Tq), 0};
    case Operation::kKeys:
      return {static_cast<double>(kLengths.Tk), 0};
    case Operation::kConstant:
      return {x.number, 0};
    case Operation::kElement: {
      const auto n = static_cast<std::size_t>(a.value);
      if (whole) return {static_cast<double>(arrays.integers[n]), 0};
      return {arrays.numbers[n], n == static_cast<std::size_t>(element) ? 1.0 : 0.0};
    }
    case Operation::kAdd:
      return whole ? integer(a.value + b.value) : Meaning{a.value + b.value, a.slope + b.slope};
    case Operation::kSubtract:
      return whole ? integer(a.value - b.value) : Meaning{a.value - b.value, a.slope - b.slope};
    case Operation::kMultiply: {
      if (!whole) return {a.value * b.value, a.slope * b.value + a.value * b.slope};
      // The product of two integers of 32 bits has up to 62 bits, more than a float64 holds.
      const auto product = static_cast<std::int64_t>(a.value) * static_cast<std::int64_t>(b.value);
      return {static_cast<double>(static_cast<std::int32_t>(product)), 0};
    }
    case Operation::kDivide:
      return whole ? integer(std::floor(a.value / b.value))
                   : Meaning{a.value / b.value, (a.slope - a.value / b.value * b.slope) / b.value};
    case Operation::kModulo: {
      const double floor = std::floor(a.value / b.value);
      return {a.value - b.value * floor, whole ? 0 : a.slope - floor * b.slope};
    }
    case Operation::kMin:
      return b.value < a.value ? b : a;
    case Operation::kMax:
      return a.value < b.value ? b : a;
    case Operation::kLess:
      return {a.value < b.value ? 1.0 : 0.0, 0};
    case Operation::kLessEqual:
      return {a.value <= b.value ? 1.0 : 0.0, 0};
    case Operation::kEqual:
      return {a.value == b.value ? 1.0 : 0.0, 0};
    case Operation::kNotEqual:
      return {a.value != b.value ? 1.0 : 0.0, 0};
    case Operation::kAnd:
      return {a.value != 0 && b.value != 0 ? 1.0 : 0.0, 0};
    case Operation::kOr:
      return {a.value != 0 || b.value != 0 ? 1.0 : 0.0, 0};
    case Operation::kNot:
      return {a.value != 0 ? 0.0 : 1.0, 0};
    case Operation::kWhere:
      return a.value != 0 ? b : of[2];
    case Operation::kNegate:
      return whole ? integer(-a.value) : Meaning{-a.value, -a.slope};
    case Operation::kAbs:
      return whole ? integer(std::fabs(a.value))
                   : Meaning{std::fabs(a.value), a.value > 0   ? a.slope
                                                 : a.value < 0 ? -a.slope
                                                               : 0};
    case Operation::kExp:
      return {std::exp(a.value), std::exp(a.value) * a.slope};
    case Operation::kLog:
      return {std::log(a.value), a.slope / a.value};
    case Operation::kSqrt:
      return {std::sqrt(a.value), a.slope / (2 * std::sqrt(a.value))};
    case Operation::kTanh: {
      const double t = std::tanh(a.value);
      return {t, (1 - t * t) * a.slope};
    }
    case Operation::kSin:
      return {std::sin(a.value), std::cos(a.value) * a.slope};
    case Operation::kCos:
      return {std::cos(a.value), -std::sin(a.value) * a.slope};
    case Operation::kFloor:
      return {std::floor(a.value), 0};
    case Operation::kToNumber:
      return {a.value, 0};
    case Operation::kToInteger:
      return {std::clamp(std::trunc(a.value), -0x1p31, 0x1p31 - 1), 0};
  }
  return {};
}

// ---- random expressions ---------------------------------------------------------------------

// Draws random expressions that are valid for any score: integers are not divided by 0, indices lie
// in the captured arrays, and the arguments of log and sqrt are positive.
class Drawn {
 public:
  Drawn(unsigned seed, const Arrays& arrays)
      : bits_(seed),
        numbers_(ConstView(arrays.numbers), "numbers"),
        integers_(ConstView(arrays.integers), "integers") {}

  Expression number(int depth) {
    if (depth == 0) return leaf();
    switch (bits_() % 16) {
      case 0:
        return number(depth - 1) + number(depth - 1);
      case 1:
        return number(depth - 1) - number(depth - 1);
      case 2:
        return number(depth - 1) * leaf();
      case 3:
        return number(depth - 1) / (exp(sin(number(depth - 1))) + 0.5);
      case 4:
        return number(depth - 1) % 2.75;
      case 5:
        return min(number(depth - 1), number(depth - 1));
      case 6:
        return max(number(depth - 1), number(depth - 1));
      case 7:
        return where(truth(depth - 1), number(depth - 1), number(depth - 1));
      case 8:
        return -number(depth - 1);
      case 9:
        return abs(number(depth - 1));
      case 10:
        return exp(tanh(number(depth - 1)));
      case 11:
        return log(abs(number(depth - 1)) + 0.25);
      case 12:
        return sqrt(abs(number(depth - 1)) + 0.125);
      case 13:
        return bits_() % 2 == 0 ? sin(number(depth - 1)) : cos(number(depth - 1));
      case 14:
        return floor(number(depth - 1)) + number(depth - 1);
      default:
        return to_number(integer(depth - 1)) * 0.37;
    }
  }
  Expression integer(int depth) {
    const Expression symbols[] = {x_.b, x_.h, x_.i, x_.j, x_.Tq, x_.Tk};
    if (depth == 0) {
      return bits_() % 3 == 0 ? Expression(static_cast<int>(bits_() % 19) - 9)
                              : symbols[bits_() % std::size(symbols)];
    }
    switch (bits_() % 11) {
      case 0:
        return integer(depth - 1) + integer(depth - 1);
      case 1:
        return integer(depth - 1) - integer(depth - 1);
      case 2:
        return integer(depth - 1) * integer(depth - 1);
      case 3:
        return integer(depth - 1) / (static_cast<int>(bits_() % 7) - 8);
      case 4:
        return integer(depth - 1) % (static_cast<int>(bits_() % 7) + 1);
      case 5:
        return min(integer(depth - 1), integer(depth - 1));
      case 6:
        return max(integer(depth - 1), integer(depth - 1));
      case 7:
        return abs(-integer(depth - 1));
      case 8:
        return where(truth(depth - 1), integer(depth - 1), integer(depth - 1));
      case 9:
        return integers_(integer(depth - 1) % kTable);
      default:
        return to_integer(number(depth - 1));
    }
  }
  Expression truth(int depth) {
    if (depth == 0) return Expression(bits_() % 2 == 0);
    switch (bits_() % 8) {
      case 0:
        return integer(depth - 1) < integer(depth - 1);
      case 1:
        return integer(depth - 1) >= integer(depth - 1);
      case 2:
        return integer(depth - 1) == integer(depth - 1);
      case 3:
        return truth(depth - 1) != truth(depth - 1);
      case 4:
        return truth(depth - 1) && truth(depth - 1);
      case 5:
        return truth(depth - 1) || truth(depth - 1);
      case 6:
        return !truth(depth - 1);
      default:
        return number(depth - 1) <= number(depth - 1);
    }
  }

  const Captured& numbers() const { return numbers_; }

 private:
  Expression leaf() {
    switch (bits_() % 4) {
      case 0:
        return numbers_(abs(x_.i - x_.j) % kTable);
      case 1:
        return 0.1 * static_cast<double>(bits_() % 40) - 2.03;
      default:
        return x_.s;
    }
  }

  std::mt19937 bits_;
  const Symbols x_;
  const Captured numbers_, integers_;
};

// ---- tiles ----------------------------------------------------------------------------------

template <class T>
struct Evaluated {
  std::vector<T> scores, slopes;
  friend bool operator==(const Evaluated& a, const Evaluated& b) {
    const auto same = [](const std::vector<T>& x, const std::vector<T>& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](T p, T q) {
        return std::isnan(p) ? std::isnan(q) : p == q && std::signbit(p) == std::signbit(q);
      });
    };
    return same(a.scores, b.scores) && same(a.slopes, b.slopes);
  }
};

template <class T>
Evaluated<T> evaluated(const detail::ScoreInstance& instance, const ScoreMod& mod, const At& at,
                       const std::vector<T>& scores, std::size_t cut) {
  Evaluated<T> to{scores, std::vector<T>(scores.size(), T(1))};
  for (std::size_t begin = 0; begin < scores.size(); begin += cut) {
    const std::size_t count = std::min(cut, scores.size() - begin);
    core::apply_instance<T>(instance, mod.callable.get(),
                            {detail::shifted(at, 0, static_cast<std::int32_t>(begin)), kLengths, 1,
                             static_cast<std::int32_t>(count), static_cast<Index>(count),
                             to.scores.data() + begin, to.slopes.data() + begin});
  }
  return to;
}

std::vector<detail::ScoreInstance> instances_here(const ScoreMod& mod) {
  std::vector<detail::ScoreInstance> here;
  for (const auto& one : std::span(mod.instances, static_cast<std::size_t>(mod.instance_count))) {
    if (one.target <= core::best_instance_target()) here.push_back(one);
  }
  return here;
}

bool near(double got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::fabs(got - want) <= 1e-9 * (1 + std::fabs(want));
}

TEST(Expressions, HaveTheValuesAndDerivativesOfTheirMeaning) {
  const Arrays arrays;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0, 2);
  int with_slope = 0;
  int compared = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    const Expression drawn = Drawn(seed, arrays).number(1 + static_cast<int>(seed % 6));
    const ScoreMod mod = score_mod(drawn);
    const At at{static_cast<std::int32_t>(seed % 3), static_cast<std::int32_t>(seed % 5), 7, 2};
    std::vector<double> scores(40);
    for (double& s : scores) s = normal(random);
    const Evaluated<double> got = evaluated(mod.instances[0], mod, at, scores, scores.size());
    for (std::size_t c = 0; c < scores.size(); ++c) {
      const At place = detail::shifted(at, 0, static_cast<std::int32_t>(c));
      const Meaning want = meaning_of(drawn.node(), place, scores[c], arrays);
      ASSERT_PRED2(near, got.scores[c], want.value) << drawn.text() << " at j " << place.j;
      // A derivative of 1e6 or more amplifies rounding errors beyond the bound.
      if (std::isfinite(want.slope) && std::fabs(want.slope) < 1e6) {
        ASSERT_PRED2(near, got.slopes[c], want.slope) << drawn.text() << " at j " << place.j;
        ++compared;
      }
      with_slope += want.slope != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 23000);
  EXPECT_GT(with_slope, 8000);
}

template <class T>
void expect_same_bits() {
  const Arrays arrays;
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal(0, 2);
  std::vector<T> scores(1100);  // more than two pieces of 512 pairs
  for (T& s : scores) s = static_cast<T>(normal(random));
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Expression drawn = Drawn(seed, arrays).number(1 + static_cast<int>(seed % 5));
    const ScoreMod mod = score_mod(drawn);
    const At at{0, 1, 5, 3};
    const auto instances = instances_here(mod);
    const Evaluated<T> want = evaluated(instances[0], mod, at, scores, scores.size());
    for (const auto& instance : instances) {
      for (const std::size_t cut :
           {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{512}, scores.size()}) {
        ASSERT_EQ(evaluated(instance, mod, at, scores, cut), want)
            << drawn.text() << ", instance " << static_cast<int>(instance.target) << ", cut "
            << cut;
      }
    }
  }
}

TEST(Expressions, HaveTheSameBitsOnEveryTargetAndForEveryCut) {
  expect_same_bits<float>();
  expect_same_bits<double>();
}

TEST(Expressions, MasksHaveTheValuesOfTheirMeaning) {
  const Arrays arrays;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Symbols x;
    const Captured integers(ConstView(arrays.integers), "integers");
    const Expression drawn =
        seed == 0   ? x.i / 16 == x.j / 16
        : seed == 1 ? integers(x.i % kTable) <= integers(x.j % kTable)
                    : (x.i * static_cast<int>(seed) + x.j * x.j) % static_cast<int>(seed + 1) <
                              static_cast<int>(seed / 2) ||
                          !(x.j + x.h > x.i - x.b);
    const MaskMod mod = mask_mod(drawn);
    for (const auto& instance :
         std::span(mod.instances, static_cast<std::size_t>(mod.instance_count))) {
      if (instance.target > core::best_instance_target()) continue;
      std::vector<std::uint8_t> allowed(std::size_t{1400}, 1);
      allowed[5] = 0;  // a pair that is already masked stays masked
      instance.apply(mod.callable.get(), {{1, 2, 30, 4}, kLengths, 2, 700, 700, allowed.data()});
      for (std::int32_t r = 0; r < 2; ++r) {
        for (std::int32_t c = 0; c < 700; ++c) {
          const bool want = meaning_of(drawn.node(), {1, 2, 30 + r, 4 + c}, 0, arrays).value != 0;
          ASSERT_EQ(allowed[static_cast<std::size_t>(r) * 700 + static_cast<std::size_t>(c)],
                    want && !(r == 0 && c == 5))
              << drawn.text();
        }
      }
    }
  }
}

// The side of a condition that is not taken adds nothing to the derivative, even where its own
// derivative is infinite.
TEST(Expressions, OtherSidesOfConditionsAddNoNaN) {
  const Symbols x;
  const ScoreMod mod = score_mod(where(x.s > 0, log(x.s), 3 * x.s));
  const Evaluated<double> got =
      evaluated(mod.instances[0], mod, {}, std::vector<double>{2, 0, -1}, 3);
  EXPECT_EQ(got.slopes, (std::vector<double>{0.5, 3, 3}));
  EXPECT_EQ(got.scores[2], -3);
}

// ---- gradients of captured arrays -----------------------------------------------------------

// Returns the gradient of sum_c ds_c score_c with respect to the captured numbers. If `boxed`, the
// terms are summed in a copy with only the elements that these pairs can read, as in a task.
template <class T>
std::vector<double> captured_gradient(const std::vector<ScoreMod>& mods, const Captured& of,
                                      detail::InstanceTarget target, const At& at,
                                      const std::vector<T>& scores, const std::vector<T>& ds,
                                      bool boxed) {
  std::vector<double> result(std::size_t{kTable}, -1);
  const core::CapturedTarget to[] = {{of.shared_array(), View(result.data(), {kTable}), false}};
  expressions::CapturedGradients all(mods, to);
  all.start();
  const auto count = static_cast<Index>(scores.size());
  if (boxed) {
    expressions::CapturedGradients some = all;
    expressions::Pairs pairs = expressions::all_pairs(1, 1, 1, count);
    pairs.b = at.b;
    pairs.h = at.h;
    pairs.i = at.i;
    pairs.j = at.j;
    some.start(pairs);
    some.add(target, {at, kLengths}, count, scores.data(), ds.data());
    some.add_to(all);
  } else {
    all.add(target, {at, kLengths}, count, scores.data(), ds.data());
  }
  all.deliver(to, core::StopPoint());
  return result;
}

TEST(Expressions, GiveCapturedArraysTheGradientsOfTheirMeaning) {
  const Arrays arrays;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0, 2);
  int compared = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    Drawn drawn(seed, arrays);
    const Expression first = drawn.number(1 + static_cast<int>(seed % 5));
    const Expression second = drawn.number(static_cast<int>(seed % 3));
    const std::vector<ScoreMod> mods{score_mod(first), score_mod(second)};
    const At at{static_cast<std::int32_t>(seed % 3), static_cast<std::int32_t>(seed % 5), 7, 2};
    std::vector<double> scores(43), ds(43);
    for (double& s : scores) s = normal(random);
    for (double& d : ds) d = random() % 4 == 0 ? 0 : normal(random);
    const std::vector<double> got = captured_gradient(
        mods, drawn.numbers(), detail::InstanceTarget::kBaseline, at, scores, ds, false);
    for (int element = 0; element < kTable; ++element) {
      double want = 0;
      double largest = 0;
      for (std::size_t c = 0; c < scores.size(); ++c) {
        if (ds[c] == 0) continue;
        const At place = detail::shifted(at, 0, static_cast<std::int32_t>(c));
        const Meaning inner = meaning_of(first.node(), place, scores[c], arrays, element);
        const Meaning outer = meaning_of(second.node(), place, inner.value, arrays, element);
        const Meaning slope = meaning_of(second.node(), place, inner.value, arrays);
        const double term =
            ds[c] * (outer.slope + (slope.slope == 0 ? 0 : slope.slope * inner.slope));
        want += term;
        largest = std::max(largest, std::fabs(term));
      }
      if (!std::isfinite(want) || largest > 1e6) continue;
      ASSERT_NEAR(got[static_cast<std::size_t>(element)], want, 1e-9 * (1 + largest))
          << first.text() << " then " << second.text() << ", element " << element;
      compared += want != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 1000);
}

template <class T>
void expect_same_gradients() {
  const Arrays arrays;
  std::mt19937_64 random(6);
  std::normal_distribution<double> normal(0, 2);
  std::vector<T> scores(700), ds(700);
  for (T& s : scores) s = static_cast<T>(normal(random));
  for (T& d : ds) d = static_cast<T>(normal(random));
  for (unsigned seed = 0; seed < 60; ++seed) {
    Drawn drawn(seed, arrays);
    // A C++ function stands between two expressions.
    const std::vector<ScoreMod> mods{score_mod(drawn.number(static_cast<int>(seed % 4))),
                                     score_mod([](auto s, At) { return s * s * 0.125F; }),
                                     score_mod(drawn.number(static_cast<int>(seed % 3)))};
    const At at{0, 1, 5, 3};
    const auto gradient = [&](detail::InstanceTarget target, bool boxed) {
      return captured_gradient(mods, drawn.numbers(), target, at, scores, ds, boxed);
    };
    const std::vector<double> want = gradient(detail::InstanceTarget::kBaseline, false);
    for (const auto target : {detail::InstanceTarget::kBaseline, detail::InstanceTarget::kAvx2,
                              detail::InstanceTarget::kAvx512}) {
      if (target > core::best_instance_target()) continue;
      for (const bool boxed : {false, true}) {
        const std::vector<double> got = gradient(target, boxed);
        ASSERT_EQ(Evaluated<double>({got, {}}), Evaluated<double>({want, {}}))
            << mods.size() << " mods, seed " << seed << ", boxed " << boxed;
      }
    }
  }
}

TEST(Expressions, GradientsOfCapturedArraysHaveTheSameBitsOnEveryTarget) {
  expect_same_gradients<float>();
  expect_same_gradients<double>();
}

}  // namespace
}  // namespace qkv::test
