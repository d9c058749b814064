// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/error.h>

#include "bench/groups.h"
#include "bench/report.h"
#include "bench/session.h"
#include "commands/about/commands.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/shell/progress.h"

namespace {

constexpr const char* kBenchFooter = R"(Examples:
  qkv bench small
  qkv bench options --quick --json
  qkv bench decode --page 64

Without a group, all but widths are measured, which takes a few minutes. Groups:
)";

struct BenchOptions {
  std::vector<std::string> groups{};
  double seconds = 1;
  qkv::Index page = 0;
  bool quick = false;
  OutputOptions outputs{};
};

std::string bench_footer() {
  std::string text = kBenchFooter;
  for (const qkv::bench::Group& group : qkv::bench::groups()) {
    const bool named = group.choice == qkv::bench::Choice::kWhenNamed;
    text += fmt::format("  {:<9}{}{}\n", group.name, group.about, named ? " (only if named)" : "");
  }
  return text;
}

std::vector<qkv::bench::Group> groups_of(const BenchOptions& options) {
  try {
    return qkv::bench::chosen_groups(options.groups);
  } catch (const qkv::Error& error) {
    throw UsageError(error.what());
  }
}

void check_page(const BenchOptions& options, const std::vector<qkv::bench::Group>& groups) {
  if (options.page == 0) return;
  if (options.page % 16 != 0) {
    throw UsageError(fmt::format("--page: expected a multiple of 16, got {}", options.page));
  }
  if (groups.size() != 1 || groups.front().name != "decode") {
    throw UsageError("--page requires decode as the only group");
  }
}

// The command line that repeats this run, shown in the report; without the output options.
std::string command_of(const BenchOptions& options, const Common& common) {
  std::string command = "qkv";
  if (common.threads > 0) command += fmt::format(" --threads {}", common.threads);
  command += " bench";
  for (const std::string& group : options.groups) command += " " + group;
  if (options.seconds != 1) command += fmt::format(" --seconds {}", options.seconds);
  if (options.page > 0) command += fmt::format(" --page {}", options.page);
  if (options.quick) command += " --quick";
  return command;
}

qkv::bench::Settings settings_of(const BenchOptions& options, const Common& common,
                                 Progress& progress) {
  qkv::bench::Settings settings;
  settings.size = options.quick ? qkv::bench::Size::kQuick : qkv::bench::Size::kFull;
  settings.seconds = options.seconds;
  settings.page = options.page;
  settings.threads = common.threads;
  settings.stop = &stop_flag();
  settings.started = [&progress](std::string_view row) { progress.at(std::string(row)); };
  return settings;
}

void run(const BenchOptions& options, const Common& common) {
  if (!(options.seconds > 0)) {
    throw UsageError(fmt::format("--seconds: expected a number above 0, got {}", options.seconds));
  }
  const std::vector<qkv::bench::Group> groups = groups_of(options);
  check_page(options, groups);
  std::optional<Progress> progress(std::in_place, common, "bench");
  qkv::bench::Session session(settings_of(options, common, *progress));
  const qkv::bench::Facts facts = facts_of(command_of(options, common), session);
  Results results;
  results.text = [&] { return report_text(facts, session.rows()); };
  results.json = [&] { return report_json(facts, session.rows()); };
  check_outputs(options.outputs, results);
  for (const qkv::bench::Group& group : groups) group.run(session);
  progress.reset();  // erases the line of progress before the results are printed
  write_outputs(options.outputs, results);
  const int wrong = wrong_rows(session.rows());
  if (wrong > 0) {
    throw std::runtime_error(
        fmt::format("bench: results differ from the reference's in {} of {} rows", wrong,
                    session.rows().size()));
  }
}

}  // namespace

void add_bench(const Command& program, const Common& common) {
  const Command command =
      program.add_command("bench", "measure attention relative to this machine's peak");
  const auto options = std::make_shared<BenchOptions>();
  command.add_option("GROUP", options->groups, "what to measure (default: all but widths)")
      .type_name("");
  add_real(command, "--seconds", options->seconds,
           "seconds to measure each row of the report (default 1); without effect with --quick");
  add_number(command, "--page", options->page, Bounds<qkv::Index>{16, 4096},
             "also measure decoding from pages of N keys, a multiple of 16 (group decode)");
  command.add_flag("--quick", options->quick,
                   "short lengths and few repetitions, to see that everything runs");
  add_outputs(command, options->outputs, "txt", {});
  command.footer(bench_footer());
  command.callback([options, &common] { run(*options, common); });
}
