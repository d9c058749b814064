// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <memory>
#include <new>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/picture.h>
#include <qkv/context.h>
#include <qkv/error.h>
#include <qkv/ranks.h>
#include <qkv/version.h>

#include "commands/about/commands.h"
#include "commands/attend/commands.h"
#include "commands/shell/command_line.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/launched.h"
#include "commands/shell/options.h"
#include "commands/train/commands.h"
#include "commands/view/commands.h"
#include "commands/words/commands.h"
#include "translator/training/translation_run.h"

namespace {

constexpr const char* kProgramFooter = R"(Examples:
  qkv demo
  qkv words "the cat sat on the mat"

Results go to standard output, everything else to standard error. Exit: 0 done, 1 failed while
running, 2 wrong command line, 3 input missing or malformed, 4 output not writable, 5 training
diverged, 7 not available here, 130 or 143 after SIGINT or SIGTERM.)";

void add_common(const Command& program, Common& common) {
  add_number(program, "--threads", common.threads, Bounds<int>{0, qkv::Executor::kMostThreads},
             "threads (default 0: one per processor); results do not depend on the number");
  program.add_flag("--quiet", common.quiet, "no warnings and no progress on standard error");
  add_choice(program, "--progress", common.progress, kProgress,
             "show progress of long tasks: auto (default), always or never; on a terminal one line "
             "that is updated, else one line per second");
  add_choice(program, "--color", common.colour, kColour,
             "use colours: auto (default; on a terminal, unless NO_COLOR is set), always (in files "
             "and pipes too, in 24 bits) or never");
}

int complain(ExitCode code, const std::string& text) {
  ::complain(rank_in_errors() + text);
  return code;
}

// The message of an error. An error about QKV_TARGET is shown without the name of the function that
// happened to be the first to read this environment variable.
std::string message_of(const qkv::Error& error) {
  const std::string text = error.what();
  return error.argument() == "QKV_TARGET" ? text.substr(text.find(error.argument())) : text;
}

int parse_and_run(CLI::App& program, int argc, char** argv) {
  try {
    program.parse(words_of(argc, argv));
    return kDone;
  } catch (const CLI::CallForHelp&) {
    print(program.help() + "\n");  // the given command's help, else the program's
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return kDone;
  } catch (const CLI::ParseError& error) {
    // Every rank of a launched run finds this error; only rank 0 reports it and exits with kUsage.
    const bool trains = program.got_subcommand("train");
    if (trains && launched().rank > 0) return kDone;
    return complain(kUsage, explain(program, error));
  }
}

// Runs the program and returns its exit code; reports errors on standard error.
int exit_code(CLI::App& app, int argc, char** argv) {
  try {
    return parse_and_run(app, argc, argv);
  } catch (const ClosedPipe&) {
    return kDone;
  } catch (const UsageError& error) {
    return complain(kUsage, error.what());
  } catch (const qkv::app::InputError& error) {
    return complain(kInput, error.what());
  } catch (const qkv::app::OutputError& error) {
    if (error.is_closed_pipe()) return kDone;
    return complain(kOutput, error.what());
  } catch (const qkv::app::RunMismatch& error) {
    return complain(kUsage, error.what());
  } catch (const qkv::app::Diverged& error) {
    return is_follower() ? kDiverged : complain(kDiverged, error.what());
  } catch (const qkv::app::NotAvailable& error) {
    return complain(kNotAvailable, error.what());
  } catch (const qkv::OtherRankFailed&) {
    return kDone;  // the rank that failed reports its error and exits with its code
  } catch (const qkv::Cancelled&) {
    // If this process caught no signal, another rank did.
    return caught_signal() == 0 ? kDone : kSignalBase + caught_signal();
  } catch (const qkv::Error& error) {
    return complain(kFailed, message_of(error));
  } catch (const std::bad_alloc&) {
    return complain(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return complain(kFailed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  catch_signals();
  Common common;
  if (argc > 0) common.program = argv[0];
  CLI::App app("Attention you can open.", "qkv");
  app.require_subcommand(1);
  app.fallthrough();
  app.formatter(std::make_shared<Help>());
  const Command program(app);
  program.footer(kProgramFooter);
  add_common(program, common);
  app.set_version_flag("--version", "qkv " QKV_VERSION, "print the version and exit");
  add_attend(program, common);
  add_words(program, common);
  add_info(program, common);
  add_view(program, common);
  add_stats(program, common);
  add_inspect(program, common);
  add_gen(program, common);
  add_split(program, common);
  add_train(program, common);
  add_average(program, common);
  add_curve(program, common);
  add_translate(program, common);
  add_score(program, common);
  add_bench(program, common);
  add_demo(program, common);
  refuse_empty_names(app);
  const int code = exit_code(app, argc, argv);
  leave_ranks(code);
  return code;
}
