// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_COMMAND_H_
#define QKV_COMMANDS_SHELL_COMMAND_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// How commands declare their options. Hides CLI11, which, included everywhere, took most of the
// time of compiling and linting the program.

namespace CLI {  // NOLINT(readability-identifier-naming): its own
class App;
class Option;
}  // namespace CLI

// An invalid option value: what was expected and what was given.
class BadValue : public std::runtime_error {
 public:
  BadValue(std::string option, const std::string& what)
      : std::runtime_error(what), option_(std::move(option)) {}

  const std::string& option() const { return option_; }

 private:
  std::string option_;
};

// A handle to an existing option, or argument, of a command.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option type_name(const std::string& name) const;  // of the value, in --help
  Option required() const;
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;
  // For a name that may be a text: "" is a value, too, for the command to judge.
  Option may_be_empty() const;
  // Any number of values.
  Option any_number() const;
  // One value per occurrence.
  Option one_each_time() const;

  bool is_given() const;  // when the command runs

 private:
  CLI::Option* option_;
};

// A handle to an existing command, or to the program, which has commands.
class Command {
 public:
  using Take = std::function<void(const std::string& text)>;
  using TakeAll = std::function<void(const std::vector<std::string>& texts)>;

  explicit Command(CLI::App& app) : app_(&app) {}

  Command add_command(const std::string& name, const std::string& help) const;

  // `name` is "-o,--output", or "FILE" for an argument. `target` must be there when the command
  // line is read.
  Option add_option(const std::string& name, std::string& target, const std::string& help) const;
  Option add_option(const std::string& name, std::vector<std::string>& target,
                    const std::string& help) const;
  Option add_flag(const std::string& name, bool& target, const std::string& help) const;
  // An option parsed by `take`, which may throw BadValue.
  Option add_parsed(const std::string& name, const Take& take, const std::string& help) const;
  Option add_all_parsed(const std::string& name, const TakeAll& take,
                        const std::string& help) const;

  // The names of the options and arguments that are given, such as "--lr" and "DATA"; when the
  // command runs.
  std::vector<std::string> given() const;

  // An existing option.
  Option option(const std::string& name) const;

  // Printed below the options in --help.
  void footer(const std::string& text) const;
  // Called after parsing.
  void callback(const std::function<void()>& run) const;

 private:
  CLI::App* app_;
};

#endif  // QKV_COMMANDS_SHELL_COMMAND_H_
