// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/command_line.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/utf8.h>

#include "text/near_words.h"

namespace {

using Names = std::vector<std::string>;

// " (did you mean words?)" if one of the names is spelled similarly, else "".
std::string suggestion(const std::string& typed, const Names& names) {
  const auto letters = qkv::app::from_utf8(typed).value_or(U"");
  std::optional<qkv::app::Nearness> least;
  const std::string* nearest = nullptr;
  for (const std::string& name : names) {
    const auto rank = qkv::app::nearness(letters, std::u32string(name.begin(), name.end()));
    if (!rank || (least && *rank >= *least)) continue;
    least = rank;
    nearest = &name;
  }
  return nearest == nullptr ? "" : fmt::format(" (did you mean {}?)", *nearest);
}

Names option_names(const CLI::App& command) {
  Names names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->nonpositional()) names.push_back("--" + option->get_lnames().front());
  }
  return names;
}

Names command_names(const CLI::App& program) {
  Names names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// `start` and the names, as many as a message of 220 characters has room for. If some are left out,
// the text ends with their number and a pointer to the help of `command`.
std::string with_names(const std::string& start, const Names& names, const std::string& command) {
  constexpr std::size_t kMostCharacters = 220;
  for (std::size_t shown = names.size();; --shown) {
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
    std::string text = start + fmt::format("{}", fmt::join(names.begin(), end, ", "));
    if (shown < names.size()) {
      text += fmt::format(" and {} more; see {} --help", names.size() - shown, command);
    }
    if (shown <= 1 || text.size() <= kMostCharacters) return text;
  }
}

std::string unknown_option(const CLI::App& program, const std::string& typed) {
  Names names;
  const auto chosen = program.get_subcommands();
  if (!chosen.empty()) names = option_names(*chosen.front());
  for (std::string& name : option_names(program)) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  const std::string start = fmt::format("unknown option {}{}; options: ", qkv::app::quoted(typed),
                                        suggestion(typed.substr(0, typed.find('=')), names));
  return with_names(start, names, chosen.empty() ? "qkv" : "qkv " + chosen.front()->get_name());
}

std::string unknown_command(const CLI::App& program, const std::string& typed) {
  const Names names = command_names(program);
  return fmt::format("unknown command {}{}; commands: {}", qkv::app::quoted(typed),
                     suggestion(typed, names), fmt::join(names, ", "));
}

bool is_option(const std::string& text) { return text.size() > 1 && text[0] == '-'; }

// The message for `typed`, the first word of the command line that could not be parsed.
std::string unexpected(const CLI::App& program, const std::string& typed) {
  if (is_option(typed)) return unknown_option(program, typed);
  const auto chosen = program.get_subcommands();
  if (chosen.empty()) return unknown_command(program, typed);
  return fmt::format("unexpected argument {}; see qkv {} --help", qkv::app::quoted(typed),
                     chosen.front()->get_name());
}

// The name of the option that an error is about, with which CLI11's messages start.
std::string name_in(const CLI::ParseError& error) {
  const std::string text = error.what();
  return text.substr(0, text.find(':'));
}

// The message for an option that has too few or too many values.
std::string mismatch(const CLI::App& program, const std::string& name) {
  const auto chosen = program.get_subcommands();
  const CLI::Option* option = chosen.empty() ? nullptr : chosen.front()->get_option_no_throw(name);
  if (option == nullptr) option = program.get_option_no_throw(name);
  const bool more = option != nullptr &&
                    option->count() > static_cast<std::size_t>(option->get_items_expected_max());
  return name + (more ? ": given twice" : " needs a value");
}

// The word that messages use for the value of an option that must not be empty: the option's type,
// such as "FILE", or "a name" for a positional argument, whose own name begins the message. For
// other options it is "".
std::string named_by(const CLI::Option& option) {
  const std::string type = option.get_positional() ? option.get_name(true) : option.get_type_name();
  const bool is_text = type == "TEXT";  // a text may be empty
  const bool is_name = type == "NAME" || type == "FOLDER" || type.find("FILE") != std::string::npos;
  if (is_text || !(is_name || option.get_positional())) return "";
  return option.get_positional() ? "a name" : type;
}

// Whether an option has the validator of this name, which marks it.
bool is_marked(const CLI::Option& option, const char* validator) {
  try {
    // CLI11 declares get_validator() for non-const options only.
    return const_cast<CLI::Option&>(option).get_validator(validator) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

}  // namespace

std::string Help::make_option_opts(const CLI::Option* option) const {
  return option->get_type_name().empty() ? "" : " " + option->get_type_name();
}

std::string Help::make_option_usage(const CLI::Option* option) const {
  const std::string name = make_option_name(option, true);
  return option->get_required() || is_marked(*option, kNeeded) ? name : "[" + name + "]";
}

std::string Help::make_option_desc(const CLI::Option* option) const {
  constexpr std::size_t kColumns = 100;
  const std::size_t room = kColumns - get_column_width();
  std::string text;
  std::size_t column = 0;
  std::istringstream words(CLI::Formatter::make_option_desc(option));
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= room;
    if (!text.empty()) text += fits ? " " : "\n";
    column = fits && !text.empty() ? column + 1 + word.size() : word.size();
    text += word;
  }
  return text;
}

std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  bool options = true;  // whether this word is before "--"
  bool ended = false;   // whether "--" has been read
  for (int n = 1; n < argc; ++n) {
    std::string word = argv[n];
    options = options && word != "--";
    const bool has_no_value =
        options && word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1;
    if (has_no_value) word.pop_back();
    // After the first argument of a command, CLI11 takes "--" for the command's end, so a "--" that
    // precedes no word with a dash is left out.
    const bool is_needed = std::any_of(argv + n + 1, argv + argc, [](const char* later) {
      return later[0] == '-' && later[1] != '\0';
    });
    if (word == "--" && !std::exchange(ended, true) && !is_needed) continue;
    words.push_back(std::move(word));
    if (has_no_value) words.emplace_back();
  }
  std::ranges::reverse(words);
  return words;
}

void refuse_empty_names(CLI::App& program) {
  for (CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      const std::string type = named_by(*option);
      if (type.empty() || is_marked(*option, kMayBeEmpty)) continue;
      const auto check = [type](const std::string& text) {
        return text.empty() ? fmt::format("expected {}, got \"\"", type) : std::string();
      };
      option->check(CLI::Validator(check, ""));
    }
  }
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const auto left = program.remaining(true);
  const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error);
  const auto* required = dynamic_cast<const CLI::RequiredError*>(&error);
  if ((extras != nullptr || required != nullptr) && !left.empty()) {
    // A command that CLI11 reports as missing may have been misspelt.
    return unexpected(program, left.front());
  }
  if (required != nullptr && program.get_subcommands().empty()) {
    return fmt::format("a command is needed; commands: {}; see qkv --help",
                       fmt::join(command_names(program), ", "));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return mismatch(program, name_in(error));
  }
  return error.what();
}
