// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_COMMAND_LINE_H_
#define QKV_TOOLS_SHELL_COMMAND_LINE_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

// How the command line speaks.

// --help: an option and its value's name, then what it does; what else holds is said in words.
class Help : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
  // In lines of at most 100 columns.
  std::string make_option_desc(const CLI::Option* option) const override;
};

// The words of the command line, last first as CLI11 wants them. "--mask=" is "--mask" and "" here:
// CLI11 would take the next word for the value.
std::vector<std::string> words_of(int argc, char** argv);

// From here on every option and argument of these commands that takes a FILE or a NAME refuses an
// empty one, which is what a shell makes of an unset variable.
void refuse_empty_names(CLI::App& program);

// One line for a command line that cannot be read: what is wrong, and what would be right.
std::string explain(const CLI::App& program, const CLI::ParseError& error);

#endif  // QKV_TOOLS_SHELL_COMMAND_LINE_H_
