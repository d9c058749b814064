// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_COMMAND_LINE_H_
#define QKV_COMMANDS_SHELL_COMMAND_LINE_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

// Help and error texts of the command line.

// --help: an option and its value's name, then what it does.
class Help : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
  // Wraps at 100 columns.
  std::string make_option_desc(const CLI::Option* option) const override;
};

// The words of the command line, last first as CLI11 wants them. "--mask=" becomes "--mask" and "":
// CLI11 would take the next word for the value.
std::vector<std::string> words_of(int argc, char** argv);

// The name of the validator of options for which "" is a value: Option::may_be_empty().
inline constexpr const char* kMayBeEmpty = "may be empty";

// Makes every option and argument of these commands that takes a FILE or a NAME reject an
// empty one, which is what an unset shell variable expands to.
void refuse_empty_names(CLI::App& program);

// One line for an invalid command line: what is wrong, and what would be right.
std::string explain(const CLI::App& program, const CLI::ParseError& error);

#endif  // QKV_COMMANDS_SHELL_COMMAND_LINE_H_
