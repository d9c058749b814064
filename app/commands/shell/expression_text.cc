// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/expression_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "commands/shell/exit_codes.h"
#include "text/numbers.h"

namespace {

using qkv::Expression;

using UnaryFunction = Expression (*)(const Expression&);
constexpr std::pair<std::string_view, UnaryFunction> kUnaryFunctions[] = {
    {"abs", &qkv::abs},       {"exp", &qkv::exp},     {"log", &qkv::log},
    {"sqrt", &qkv::sqrt},     {"tanh", &qkv::tanh},   {"sin", &qkv::sin},
    {"cos", &qkv::cos},       {"floor", &qkv::floor}, {"float", &qkv::to_number},
    {"int", &qkv::to_integer}};

// Words that have a meaning in expressions, besides the functions in kUnaryFunctions.
constexpr std::string_view kWords[] = {"s",   "b",     "h",   "i",  "j",   "Tq",   "Tk",   "min",
                                       "max", "where", "and", "or", "not", "True", "False"};

bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The deepest nesting of brackets, "-" and "not". It is limited so that a text of a few megabytes
// cannot exhaust the stack.
constexpr int kDeepest = 200;

class Reader {
 public:
  Reader(const std::string& option, std::string_view text, ExpressionKind kind,
         const std::map<std::string, qkv::Captured>& arrays)
      : option_(option), text_(text), kind_(kind), arrays_(arrays) {}

  Expression read() {
    Expression all = alternatives();
    skip_blanks();
    if (at_ < text_.size()) fail(at_, fmt::format("expected the end, got {}", next()));
    return all;
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw UsageError(fmt::format("{}: column {}: {}", option_, at + 1, what));
  }
  std::string next() const {
    if (at_ >= text_.size()) return "the end";
    std::size_t end = at_ + 1;
    while (begins_name(text_[at_]) && end < text_.size() &&
           (begins_name(text_[end]) || is_digit(text_[end]))) {
      ++end;
    }
    // A character of several bytes stays whole.
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0U) == 0x80U) ++end;
    return qkv::app::quoted(std::string(text_.substr(at_, end - at_)));
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
      ++at_;
    }
  }
  // Skips a sign or a word if it is next, and returns whether it was.
  bool accept(std::string_view sign) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(sign)) return false;
    const std::size_t end = at_ + sign.size();
    if (begins_name(sign[0]) && end < text_.size() &&
        (begins_name(text_[end]) || is_digit(text_[end]))) {
      return false;
    }
    at_ = end;
    return true;
  }
  void expect(std::string_view sign) {
    if (!accept(sign)) fail(at_, fmt::format("expected {}, got {}", sign, next()));
  }
  // Returns make(). If it throws, the message names the column of the operator at offset `at`.
  template <class F>
  Expression at_column(std::size_t at, const F& make) const {
    try {
      return make();
    } catch (const qkv::Error& error) {
      std::string_view what = error.what();
      const std::string_view prefix = "expression: ";
      if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
      fail(at, std::string(what));
    }
  }
  // Skips blanks, and returns where the next operator or operand begins.
  std::size_t here() {
    skip_blanks();
    return at_;
  }

  Expression alternatives() {
    Expression all = conditions();
    for (std::size_t at = here(); accept("or"); at = here()) {
      const Expression right = conditions();
      all = at_column(at, [&] { return all || right; });
    }
    return all;
  }
  Expression conditions() {
    Expression all = negation();
    for (std::size_t at = here(); accept("and"); at = here()) {
      const Expression right = negation();
      all = at_column(at, [&] { return all && right; });
    }
    return all;
  }
  Expression negation() {
    const std::size_t at = here();
    if (!accept("not")) return comparison();
    const Deeper level(*this);
    const Expression x = negation();
    return at_column(at, [&] { return !x; });
  }
  // a < b <= c means a < b and b <= c, as in Python.
  Expression comparison() {
    Expression left = sum();
    std::vector<Expression> all;
    for (std::size_t at = here();; at = here()) {
      using Compare = Expression (*)(const Expression&, const Expression&);
      Compare compare = nullptr;
      if (accept("<=")) {
        compare = [](const Expression& a, const Expression& b) { return a <= b; };
      } else if (accept(">=")) {
        compare = [](const Expression& a, const Expression& b) { return a >= b; };
      } else if (accept("==")) {
        compare = [](const Expression& a, const Expression& b) { return a == b; };
      } else if (accept("!=")) {
        compare = [](const Expression& a, const Expression& b) { return a != b; };
      } else if (accept("<")) {
        compare = [](const Expression& a, const Expression& b) { return a < b; };
      } else if (accept(">")) {
        compare = [](const Expression& a, const Expression& b) { return a > b; };
      } else {
        break;
      }
      const Expression right = sum();
      all.push_back(at_column(at, [&] { return compare(left, right); }));
      left = right;
    }
    if (all.empty()) return left;
    Expression both = all.front();
    for (std::size_t n = 1; n < all.size(); ++n)
      both = at_column(at_, [&] { return both && all[n]; });
    return both;
  }
  Expression sum() {
    Expression all = product();
    for (std::size_t at = here();; at = here()) {
      if (accept("+")) {
        const Expression right = product();
        all = at_column(at, [&] { return all + right; });
      } else if (accept("-")) {
        const Expression right = product();
        all = at_column(at, [&] { return all - right; });
      } else {
        return all;
      }
    }
  }
  Expression product() {
    Expression all = sign();
    for (std::size_t at = here();; at = here()) {
      if (accept("**")) fail(at, "** is not an operation; multiply, or use exp and log");
      if (accept("*")) {
        const Expression right = sign();
        all = at_column(at, [&] { return all * right; });
      } else if (accept("//")) {
        const Expression right = sign();
        all = at_column(at, [&] {
          const bool whole =
              all.type() != Expression::Type::kNumber && right.type() != Expression::Type::kNumber;
          return whole ? all / right : floor(all / right);
        });
      } else if (accept("/")) {
        const Expression right = sign();
        all = at_column(at, [&] { return to_number(all) / right; });
      } else if (accept("%")) {
        const Expression right = sign();
        all = at_column(at, [&] { return all % right; });
      } else {
        return all;
      }
    }
  }
  Expression sign() {
    const std::size_t at = here();
    if (!accept("-")) return value();
    const Deeper level(*this);
    const Expression x = sign();
    return at_column(at, [&] { return -x; });
  }

  Expression value() {
    const std::size_t at = here();
    if (accept("(")) {
      const Deeper level(*this);
      Expression x = alternatives();
      expect(")");
      return x;
    }
    if (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.')) return number();
    if (at_ == text_.size() || !begins_name(text_[at_])) {
      fail(at, fmt::format("expected a value, got {}", next()));
    }
    std::size_t end = at_;
    while (end < text_.size() && (begins_name(text_[end]) || is_digit(text_[end]))) ++end;
    const std::string name(text_.substr(at_, end - at_));
    at_ = end;
    return named(name, at);
  }
  Expression number() {
    const char* const begin = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    double real = 0;
    const auto [after, error] = std::from_chars(begin, end, real);
    if (error == std::errc::result_out_of_range) {
      fail(at_, fmt::format("a number must be 0 or have a size from 4.9e-324 to 1.8e308, got {}",
                            std::string_view(begin, static_cast<std::size_t>(after - begin))));
    }
    if (error != std::errc()) fail(at_, fmt::format("expected a number, got {}", next()));
    const std::string_view digits(begin, static_cast<std::size_t>(after - begin));
    const std::size_t at = at_;
    at_ += digits.size();
    if (at_ < text_.size() && begins_name(text_[at_])) {
      fail(at_, fmt::format("expected an operator after the number, got {}", next()));
    }
    if (digits.find_first_not_of("0123456789") != std::string_view::npos) return real;
    std::int64_t whole = 0;
    if (std::from_chars(begin, after, whole).ec != std::errc()) {
      fail(at, fmt::format("an integer must fit in 32 bits, got {}", digits));
    }
    return at_column(at, [&] { return Expression(whole); });
  }
  Expression named(const std::string& name, std::size_t at) {
    if (name == "s") return symbols_.s;
    if (name == "b") return symbols_.b;
    if (name == "h") return symbols_.h;
    if (name == "i") return symbols_.i;
    if (name == "j") return symbols_.j;
    if (name == "Tq") return symbols_.Tq;
    if (name == "Tk") return symbols_.Tk;
    if (name == "True") return true;
    if (name == "False") return false;
    if (const auto array = arrays_.find(name); array != arrays_.end()) {
      expect("[");
      const std::vector<Expression> index = list("]");
      return at_column(at, [&] { return array->second.at(index); });
    }
    if (name == "where") {
      const std::vector<Expression> x = arguments(name, at, 3);
      return at_column(at, [&] { return where(x[0], x[1], x[2]); });
    }
    if (name == "min" || name == "max") {
      const std::vector<Expression> x = arguments(name, at, 2);
      return at_column(at, [&] { return name == "min" ? min(x[0], x[1]) : max(x[0], x[1]); });
    }
    for (const auto& [known, function] : kUnaryFunctions) {
      if (known != name) continue;
      const Expression x = arguments(name, at, 1).at(0);
      return at_column(at, [&, apply = function] { return apply(x); });
    }
    std::string names =
        kind_ == ExpressionKind::kScore ? "s, b, h, i, j, Tq, Tk" : "b, h, i, j, Tq, Tk";
    for (const auto& [array, captured] : arrays_) names += ", " + array;
    fail(at, fmt::format("unknown name {}; known: {}; arrays are named by --with",
                         qkv::app::quoted(name), names));
  }
  std::vector<Expression> arguments(const std::string& name, std::size_t at, std::size_t count) {
    expect("(");
    std::vector<Expression> all = list(")");
    if (all.size() == count) return all;
    fail(at, fmt::format("{} takes {} argument{}, got {}", name, count, count == 1 ? "" : "s",
                         all.size()));
  }
  std::vector<Expression> list(std::string_view end) {
    const Deeper level(*this);
    std::vector<Expression> all;
    if (accept(end)) return all;
    do {
      all.push_back(alternatives());
    } while (accept(","));
    expect(end);
    return all;
  }

  struct Deeper {
    explicit Deeper(Reader& reader) : reader_(reader) {
      if (++reader.depth_ > kDeepest) {
        reader.fail(reader.at_,
                    fmt::format("more than {} levels of brackets, - and not", kDeepest));
      }
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --reader_.depth_; }
    Reader& reader_;
  };

  const std::string& option_;
  std::string_view text_;
  ExpressionKind kind_;
  const std::map<std::string, qkv::Captured>& arrays_;
  const qkv::Symbols symbols_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Expression read_expression(const std::string& option, std::string_view text, ExpressionKind kind,
                           const std::map<std::string, qkv::Captured>& arrays) {
  return Reader(option, text, kind, arrays).read();
}

bool is_array_name(std::string_view text) {
  if (text.empty() || !begins_name(text[0])) return false;
  if (!std::ranges::all_of(text, [](char c) { return begins_name(c) || is_digit(c); }))
    return false;
  const auto is = [&](const auto& known) { return known.first == text; };
  return std::ranges::find(kWords, text) == std::end(kWords) &&
         std::ranges::none_of(kUnaryFunctions, is);
}
