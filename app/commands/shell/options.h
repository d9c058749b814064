// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_OPTIONS_H_
#define QKV_COMMANDS_SHELL_OPTIONS_H_

#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/view.h>

#include "commands/shell/command.h"
#include "text/choice.h"
#include "text/numbers.h"

template <class Value>
using Choice = qkv::app::Choice<Value>;

// In this file, `choices` is an array of Choice<Value>. Options keep references to it and to
// `target`, so both must outlive the parsing of the command line.

// The names of `choices`, joined by `separator`.
template <class Choices>
std::string names_of(const Choices& choices, std::string_view separator = ", ") {
  std::string names;
  for (const auto& choice : choices) {
    names += fmt::format("{}{}", names.empty() ? "" : separator, choice.name);
  }
  return names;
}

// The value of the choice called `text`. Throws a BadValue that lists the valid names.
template <class Choices>
auto chosen(const std::string& option, const std::string& text, const Choices& choices) {
  for (const auto& choice : choices) {
    if (choice.name == text) return choice.value;
  }
  throw BadValue(
      option, fmt::format("unknown name {}; valid: {}", qkv::app::quoted(text), names_of(choices)));
}

// Adds an option that takes one name of `choices`; the error of an unknown name lists them.
template <class Target, class Choices>
Option add_choice(const Command& command, const std::string& name, Target& target,
                  const Choices& choices, const std::string& help) {
  return command
      .add_parsed(
          name,
          [&target, &choices, name](const std::string& text) {
            target = chosen(name, text, choices);
          },
          help)
      .type_name(names_of(choices, "|"));
}

// Adds an option that takes one name of `choices` and may be given any number of times.
template <class Value, class Choices>
Option add_choices(const Command& command, const std::string& name, std::vector<Value>& target,
                   const Choices& choices, const std::string& help) {
  return command
      .add_all_parsed(
          name,
          [&target, &choices, name](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) target.push_back(chosen(name, text, choices));
          },
          help)
      .type_name(names_of(choices, "|"))
      .one_each_time();
}

// The upper bound of options for widths, lengths and small counts. It is far above any sensible
// size, so that a typo gets an error instead of an allocation failure.
inline constexpr qkv::Index kLargestSize = 65536;

// The range of an option's whole number; both ends are allowed.
template <class Number>
struct Bounds {
  Number lowest = 0;
  Number highest = std::numeric_limits<Number>::max();
};

// Adds an option that takes a whole number; trailing text is an error. `target` is a Number or a
// std::optional<Number>.
template <class Number, class Target>
Option add_number(const Command& command, const std::string& name, Target& target,
                  const Bounds<Number>& bounds, const std::string& help) {
  return command
      .add_parsed(
          name,
          [&target, bounds, name](const std::string& text) {
            const auto number = qkv::app::parse_number<Number>(text);
            if (!number || *number < bounds.lowest || *number > bounds.highest) {
              const bool too_large = !number && !text.empty() &&
                                     text.find_first_not_of("0123456789") == std::string::npos;
              // A limit set by the number's type alone is only named if the number exceeds it.
              const bool hides_limit =
                  bounds.highest == std::numeric_limits<Number>::max() && !too_large;
              throw BadValue(name,
                             fmt::format("expected a whole number from {}{}, got {}", bounds.lowest,
                                         hides_limit ? "" : fmt::format(" to {}", bounds.highest),
                                         qkv::app::quoted(text)));
            }
            target = *number;
          },
          help)
      .type_name("N");
}

template <class Number>
Option add_number(const Command& command, const std::string& name, Number& target, Number lowest,
                  const std::string& help) {
  return add_number(command, name, target, Bounds<Number>{lowest}, help);
}

// Adds an option that takes a real number; trailing text is an error. NaN and infinity are accepted
// here, since the library checks for them.
template <class Number>
Option add_real(const Command& command, const std::string& name, Number& target,
                const std::string& help) {
  return command
      .add_parsed(
          name,
          [&target, name](const std::string& text) {
            double number = 0;
            const char* end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, number);
            if (read.ec != std::errc{} || read.ptr != end) {
              throw BadValue(name,
                             fmt::format("expected a number, got {}", qkv::app::quoted(text)));
            }
            target = number;
          },
          help)
      .type_name("X");
}

#endif  // QKV_COMMANDS_SHELL_OPTIONS_H_
