// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_COMMAND_LINE_H_
#define QKV_COMMANDS_SHELL_COMMAND_LINE_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

// The help texts and error messages of the command line.

// Formats --help: each option with the name of its value, then what it does.
class Help : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  // Returns the name of a positional argument, in brackets if it may be left out.
  std::string make_option_usage(const CLI::Option* option) const override;
  // Returns the description, wrapped so that the help is at most 100 columns wide.
  std::string make_option_desc(const CLI::Option* option) const override;
};

// The words of the command line after the program's name, last first, as CLI11 expects them.
// "--mask=" becomes "--mask" and "", since CLI11 would take the next word for the value.
std::vector<std::string> words_of(int argc, char** argv);

// The name of the CLI11 validator by which Option::may_be_empty() marks an option.
inline constexpr const char* kMayBeEmpty = "may be empty";

// The name of the CLI11 validator by which Option::needed() marks an option.
inline constexpr const char* kNeeded = "needed";

// Makes every option that takes a FILE, a FOLDER or a NAME, and every positional argument except
// TEXT, reject "", which is what an unset shell variable expands to. Applies to all commands of
// `program`.
void refuse_empty_names(CLI::App& program);

// A message of one line for an invalid command line: what is wrong, and what would be valid.
std::string explain(const CLI::App& program, const CLI::ParseError& error);

#endif  // QKV_COMMANDS_SHELL_COMMAND_LINE_H_
