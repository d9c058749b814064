// SPDX-License-Identifier: Apache-2.0
// `qkv gen`: sentence pairs to train a translator on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include <fmt/format.h>

#include <qkv/error.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/options.h"
#include "commands/shell/progress.h"
#include "commands/shell/staged_file.h"
#include "commands/train/commands.h"
#include "files/text_file.h"
#include "translator/data/tasks.h"

namespace {

using qkv::Index;
using qkv::app::DaySplit;
using qkv::app::Example;

constexpr const char* kGenFooter = R"(Examples:
  qkv gen dates
  qkv gen dates -n 20000 --split train --seed 1 -o dates.tsv
  qkv gen reverse -n 5000 -o - | tail -n 3

Lines of source, tab, target. The same seed gives the same lines on every machine, and a longer
file starts with the shorter one.

dates: a day from 1900-01-01 to 2099-12-31 as people write it in English ("the 3rd of May, 1987",
"sun 3 may 1987", "third of May nineteen eighty-seven", "3.V.1987") -> 1987-05-03. No spelling is
ambiguous: in all-numeric dates with the year last the day comes first (3/5/1987 is in May), with
the year first the month comes second (1987/05/03, 19870503). About a tenth of all days are test
days, whatever the seed: a model trained on --split train has never seen a day of --split test.

reverse: 3 to 15 letters a-z -> the same, last first.)";

enum class Task { kDates, kReverse };
constexpr Choice<Task> kTasks[] = {{"dates", Task::kDates}, {"reverse", Task::kReverse}};
constexpr Choice<DaySplit> kSplits[] = {
    {"all", DaySplit::kAll}, {"train", DaySplit::kTrain}, {"test", DaySplit::kTest}};

struct GenOptions {
  Task task = Task::kDates;
  Index lines = 10;
  std::uint64_t seed = 0;
  DaySplit split = DaySplit::kAll;
  std::string output = "-";
};

Example example(const GenOptions& options, Index n) {
  return options.task == Task::kDates ? qkv::app::date_example(options.seed, n, options.split)
                                      : qkv::app::reverse_example(options.seed, n);
}

// The lines as blocks of text, a few thousand lines each.
class ExampleBlocks {
 public:
  ExampleBlocks(const GenOptions& options, const Common& common)
      : options_(options), progress_(common, "gen") {}

  // The next block, empty at the end. Throws Cancelled after a signal.
  std::string_view next() {
    constexpr Index kBlock = 4096;
    if (stop_flag().load()) throw qkv::Cancelled("gen");
    block_.clear();
    for (const Index end = std::min(options_.lines, line_ + kBlock); line_ < end; ++line_) {
      const Example pair = example(options_, line_);
      block_ += fmt::format("{}\t{}\n", pair.source, pair.target);
    }
    progress_.at(fmt::format("{} of {} lines", line_, options_.lines));
    return block_;
  }

 private:
  const GenOptions& options_;
  Progress progress_;
  Index line_ = 0;
  std::string block_;
};

void run(const GenOptions& options, const Common& common, bool has_split) {
  if (has_split && options.task != Task::kDates)
    throw UsageError("--split requires the task dates");
  if (options.output != "-") check_place(options.output);
  ExampleBlocks lines(options, common);
  const auto next = [&] { return lines.next(); };
  if (options.output != "-") return qkv::app::write_blocks(options.output, next);
  // Lines are written one block at a time, because the reader of a pipe may close it early.
  for (std::string_view block = next(); !block.empty(); block = next()) print(block);
}

}  // namespace

void add_gen(const Command& program, const Common& common) {
  constexpr Index kMostLines = 100'000'000;
  const Command command =
      program.add_command("gen", "generate sentence pairs to train a translator on");
  const auto options = std::make_shared<GenOptions>();
  add_choice(command, "TASK", options->task, kTasks, "dates or reverse").required();
  add_number(command, "-n,--lines", options->lines, Bounds<Index>{1, kMostLines},
             "number of lines (default 10)");
  add_number(command, "--seed", options->seed, Bounds<std::uint64_t>{}, "random seed (default 0)");
  const Option split =
      add_choice(command, "--split", options->split, kSplits,
                 "for dates: all days (default), the training days or the test days");
  command.add_option("-o,--output", options->output, "output file (default -: standard output)")
      .type_name("FILE");
  command.footer(kGenFooter);
  command.callback([options, split, &common] { run(*options, common, split.is_given()); });
}
