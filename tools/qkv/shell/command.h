// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_COMMAND_H_
#define QKV_TOOLS_SHELL_COMMAND_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The commands as they declare their options. CLI11 is behind it: included everywhere, it was the
// larger part of what compiling and linting the program took.

namespace CLI {  // NOLINT(readability-identifier-naming): its own
class App;
class Option;
}  // namespace CLI

// An option's value that is none: what was expected, and what came.
class BadValue : public std::runtime_error {
 public:
  BadValue(std::string option, const std::string& what)
      : std::runtime_error(what), option_(std::move(option)) {}

  const std::string& option() const { return option_; }

 private:
  std::string option_;
};

// An option, or an argument, of a command that is there.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option type_name(const std::string& name) const;  // of the value, in --help
  Option required() const;
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;
  // As many values as there are.
  Option any_number() const;
  // One value each time it is given.
  Option one_each_time() const;

  bool is_given() const;  // when the command runs

 private:
  CLI::Option* option_;
};

// A command that is there, or the program, which has commands.
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
  // One that `take` reads, which may throw BadValue.
  Option add_parsed(const std::string& name, const Take& take, const std::string& help) const;
  Option add_all_parsed(const std::string& name, const TakeAll& take,
                        const std::string& help) const;

  // Of those that are there.
  Option option(const std::string& name) const;

  // Below the options in --help.
  void footer(const std::string& text) const;
  // When the command line is read to its end.
  void callback(const std::function<void()>& run) const;

 private:
  CLI::App* app_;
};

#endif  // QKV_TOOLS_SHELL_COMMAND_H_
