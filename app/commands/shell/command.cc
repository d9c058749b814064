// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/command.h"

#include <CLI/CLI.hpp>

#include "commands/shell/command_line.h"

namespace {

template <class Value>
std::function<void(const Value&)> guarded(const std::function<void(const Value&)>& take) {
  return [take](const Value& value) {
    try {
      take(value);
    } catch (const BadValue& bad) {
      throw CLI::ValidationError(bad.option(), bad.what());
    }
  };
}

// Marks an option by adding a validator of this name, which accepts every value.
CLI::Option* marked(CLI::Option* option, const char* name) {
  const auto take_all = [](const std::string&) { return std::string(); };
  return option->check(CLI::Validator(take_all, "", name));
}

}  // namespace

Option Option::type_name(const std::string& name) const { return Option(option_->type_name(name)); }
Option Option::required() const { return Option(option_->required()); }
Option Option::needs(const Option& other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(const Option& other) const {
  return Option(option_->excludes(other.option_));
}
Option Option::needed() const { return Option(marked(option_, kNeeded)); }
Option Option::may_be_empty() const { return Option(marked(option_, kMayBeEmpty)); }
Option Option::any_number() const { return Option(option_->expected(-1)); }
Option Option::one_each_time() const { return Option(option_->allow_extra_args(false)); }
bool Option::is_given() const { return option_->count() > 0; }

Command Command::add_command(const std::string& name, const std::string& help) const {
  return Command(*app_->add_subcommand(name, help));
}

Option Command::add_option(const std::string& name, std::string& target,
                           const std::string& help) const {
  return Option(app_->add_option(name, target, help));
}

Option Command::add_option(const std::string& name, std::vector<std::string>& target,
                           const std::string& help) const {
  return Option(app_->add_option(name, target, help));
}

Option Command::add_flag(const std::string& name, bool& target, const std::string& help) const {
  return Option(app_->add_flag(name, target, help));
}

Option Command::add_parsed(const std::string& name, const Take& take,
                           const std::string& help) const {
  return Option(app_->add_option_function(name, guarded(take), help));
}

Option Command::add_all_parsed(const std::string& name, const TakeAll& take,
                               const std::string& help) const {
  return Option(app_->add_option_function(name, guarded(take), help));
}

Option Command::option(const std::string& name) const { return Option(app_->get_option(name)); }

std::vector<std::string> Command::given() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->count() > 0) names.push_back(option->get_name());
  }
  return names;
}

void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::callback(const std::function<void()>& run) const { app_->callback(run); }
