// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_OPTIONS_H_
#define QKV_TOOLS_OPTIONS_H_

#include <span>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <qkv/app/numbers.h>
#include <qkv/app/utf8.h>

// A name a user may type, and what it stands for.
template <class Value>
struct Choice {
  std::string_view name;
  Value value;
};

template <class Value, std::size_t n>
std::string names_of(const Choice<Value> (&choices)[n], std::string_view separator = ", ") {
  std::string names;
  for (const Choice<Value>& choice : choices) {
    names += fmt::format("{}{}", names.empty() ? "" : separator, choice.name);
  }
  return names;
}

// An option that takes one of some names; an unknown one is an error that lists them.
template <class Value, std::size_t n>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Value& target,
                        const Choice<Value> (&choices)[n], const std::string& help) {
  return command
      .add_option_function<std::string>(
          name,
          [&target, &choices, name](const std::string& text) {
            for (const Choice<Value>& choice : choices) {
              if (choice.name == text) {
                target = choice.value;
                return;
              }
            }
            throw CLI::ValidationError(
                name, fmt::format("unknown name {}; valid: {}", qkv::app::quoted(text),
                                  names_of(choices)));
          },
          help)
      ->type_name(names_of(choices, "|"));
}

// An option that takes a whole number, read whole, not below `lowest`.
template <class Number>
CLI::Option* add_number(CLI::App& command, const std::string& name, Number& target, Number lowest,
                        const std::string& help) {
  return command
      .add_option_function<std::string>(
          name,
          [&target, lowest, name](const std::string& text) {
            const auto number = qkv::app::parse_number<Number>(text);
            if (!number || *number < lowest) {
              throw CLI::ValidationError(
                  name, fmt::format("expected a whole number from {}, got {}", lowest,
                                    qkv::app::quoted(text)));
            }
            target = *number;
          },
          help)
      ->type_name("N");
}

#endif  // QKV_TOOLS_OPTIONS_H_
