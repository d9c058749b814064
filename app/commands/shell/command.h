// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_COMMAND_H_
#define QKV_COMMANDS_SHELL_COMMAND_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The interface by which commands declare their options. It hides CLI11, whose header took most of
// the time of compiling and linting the program when every command included it.

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI

// The error of an invalid option value. The message says what was expected and what was given.
class BadValue : public std::runtime_error {
 public:
  BadValue(std::string option, const std::string& what)
      : std::runtime_error(what), option_(std::move(option)) {}

  const std::string& option() const { return option_; }

 private:
  std::string option_;
};

// A handle to an existing option or positional argument of a command. Copies are the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option type_name(const std::string& name) const;  // names the value in --help
  Option required() const;
  // Shows a positional argument in --help as required() does; the command checks that it is given.
  Option needed() const;
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;
  // Accepts "" as a value where refuse_empty_names() would reject it; the command judges it.
  Option may_be_empty() const;
  // Accepts any number of values from one up.
  Option any_number() const;
  // Makes the option take one value each time it is given; by default it takes all words after it.
  Option one_each_time() const;

  bool is_given() const;  // known once the command line has been parsed

 private:
  CLI::Option* option_;
};

// A handle to an existing command, or to the program, whose commands are added with add_command().
class Command {
 public:
  using Take = std::function<void(const std::string& text)>;
  using TakeAll = std::function<void(const std::vector<std::string>& texts)>;

  explicit Command(CLI::App& app) : app_(&app) {}

  Command add_command(const std::string& name, const std::string& help) const;

  // Adds an option called `name`, such as "-o,--output", or a positional argument, such as "FILE".
  // The option's value is written to `target`, which must outlive the parsing of the command line.
  Option add_option(const std::string& name, std::string& target, const std::string& help) const;
  Option add_option(const std::string& name, std::vector<std::string>& target,
                    const std::string& help) const;
  Option add_flag(const std::string& name, bool& target, const std::string& help) const;
  // Add an option whose text, or whose texts all at once, are passed to `take`, which may throw
  // BadValue.
  Option add_parsed(const std::string& name, const Take& take, const std::string& help) const;
  Option add_all_parsed(const std::string& name, const TakeAll& take,
                        const std::string& help) const;

  // The names of the options and arguments that the command line gives, such as "--lr" and "DATA".
  // Known once the command line has been parsed.
  std::vector<std::string> given() const;

  // The existing option of this name.
  Option option(const std::string& name) const;

  // Sets the text that --help prints below the options.
  void footer(const std::string& text) const;
  // Sets the function that runs the command after the command line has been parsed.
  void callback(const std::function<void()>& run) const;

 private:
  CLI::App* app_;
};

#endif  // QKV_COMMANDS_SHELL_COMMAND_H_
