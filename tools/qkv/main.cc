// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/error.h>
#include <qkv/version.h>

#include "commands.h"
#include "exit_codes.h"
#include "options.h"

namespace {

constexpr const char* kFooter = R"(Examples:
  qkv demo
  qkv words "the cat sat on the mat"

Results are on standard output, everything else on standard error. Exit: 0 done, 1 failed while
running, 2 wrong command line, 3 input missing or malformed, 4 output not writable, 7 not in this
build, 130 after Ctrl-C. NO_COLOR turns colours off.)";

void add_common(CLI::App& program, Common& common) {
  add_number(program, "--threads", common.threads, 0,
             "threads (default 0: one per processor); results do not depend on them");
  program.add_flag("--quiet", common.quiet, "no warnings on standard error");
  program.set_version_flag("--version", "qkv " QKV_VERSION, "the version");
}

std::string option_names(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (option->nonpositional()) text += (text.empty() ? "" : ", ") + option->get_name();
  }
  return text;
}

// The names that would have been right.
std::string hint(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  if (!chosen.empty()) return "options: " + option_names(*chosen.front());
  std::string commands;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : ", ") + command->get_name();
  }
  return fmt::format("commands: {}; options: {}", commands, option_names(program));
}

int complain(ExitCode code, const std::string& text) {
  std::fputs(fmt::format("qkv: {}\n", text).c_str(), stderr);
  return code;
}

int parse_and_run(CLI::App& program, int argc, char** argv) {
  try {
    program.parse(argc, argv);
    return kDone;
  } catch (const CLI::CallForHelp&) {
    print(program.help() + "\n");  // of the command, when there is one
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return kDone;
  } catch (const CLI::ExtrasError& error) {
    return complain(kUsage, fmt::format("{}; {}", error.what(), hint(program)));
  } catch (const CLI::RequiredError& error) {
    const auto unknown = program.remaining();
    const std::string what = unknown.empty() || !program.get_subcommands().empty()
                                 ? error.what()
                                 : "unknown command " + qkv::app::quoted(unknown.front());
    return complain(kUsage, fmt::format("{}; {}", what, hint(program)));
  } catch (const CLI::ParseError& error) {
    return complain(kUsage, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  catch_signals();
  Common common;
  if (argc > 0) common.program = argv[0];
  CLI::App program("Attention you can open.", "qkv");
  program.require_subcommand(1);
  program.fallthrough();
  program.footer(kFooter);
  add_common(program, common);
  add_words(program, common);
  add_demo(program, common);
  try {
    return parse_and_run(program, argc, argv);
  } catch (const ClosedPipe&) {
    return kDone;
  } catch (const UsageError& error) {
    return complain(kUsage, error.what());
  } catch (const qkv::app::InputError& error) {
    return complain(kInput, error.what());
  } catch (const qkv::app::OutputError& error) {
    if (error.is_closed_pipe()) return kDone;
    return complain(kOutput, error.what());
  } catch (const NotInBuildError& error) {
    return complain(kNotInBuild, error.what());
  } catch (const qkv::Cancelled&) {
    return kSignalBase + caught_signal();
  } catch (const std::bad_alloc&) {
    return complain(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return complain(kFailed, error.what());
  }
}
