// SPDX-License-Identifier: Apache-2.0
// `qkv split`: divides sentence pairs into training, validation and test data.
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>
#include <qkv/error.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/shell/options.h"
#include "commands/shell/progress.h"
#include "commands/shell/staged_file.h"
#include "commands/train/commands.h"
#include "commands/train/translation.h"
#include "files/bad_lines.h"
#include "files/parallel_text.h"
#include "files/text_file.h"
#include "text/hold_out.h"
#include "text/sentences.h"
#include "text/text.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::InputError;
using qkv::app::OutputError;
using qkv::app::PairOfTexts;
using qkv::app::Part;

constexpr const char* kSplitFooter = R"(Examples:
  qkv gen dates -n 500 -o dates.tsv
  qkv split dates.tsv --hold-out 20 --valid 20 -o SPLIT
  qkv train SPLIT/train.tsv --valid SPLIT/valid.tsv -o SPLIT-RUN --after 2u --batch-tokens 500
  qkv score SPLIT-RUN SPLIT/test.tsv

Draws --hold-out different sources at random: FOLDER/test.tsv gets every line with one of them, and
the targets of a source are its references. Then draws --valid more, none of which shares a target
with the first: FOLDER/valid.tsv gets their lines. FOLDER/train.tsv gets the lines whose source and
target are in neither file, FOLDER/dropped.tsv the rest: lines of other sources with a target that
is held out. Every line but those of --skip-bad is in exactly one of the files, whole and in the
table's order.

Two texts are the same if they differ only in the width and kind of white space and of quotation
marks, which models read alike. Sources are compared with sources, targets with targets.

The same table, numbers and seed give the same files on every machine. The test data of a smaller
--hold-out is part of that of a larger one. The table is held in memory.)";

// A part of a split, and the name of its file without ".tsv".
struct PartName {
  Part part;
  const char* name;
};
constexpr PartName kParts[] = {{Part::kTest, "test"},
                               {Part::kValid, "valid"},
                               {Part::kTrain, "train"},
                               {Part::kDropped, "dropped"}};

struct SplitOptions {
  std::string table{};
  std::string folder{};
  Index source_column = 0;
  Index target_column = 1;
  qkv::app::HoldOut hold_out{};
  bool skip_bad = false;
  bool json = false;

  std::string name() const { return input_name(table); }
  std::string file(const PartName& part) const {
    return (std::filesystem::path(folder) / fmt::format("{}.tsv", part.name)).string();
  }
  bool writes(const PartName& part) const {
    return part.part != Part::kValid || hold_out.valid > 0;
  }
};

// Numbers texts from 0 in the order of their first occurrence. Texts whose folded_text() is equal
// have the same number.
class TextNumbers {
 public:
  std::uint32_t of(std::string_view text) {
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    return numbers_.try_emplace(qkv::app::folded_text(text), next).first->second;
  }
  Index count() const { return std::ssize(numbers_); }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_{};
};

// The table, with each sentence pair as two text numbers.
struct Table {
  std::string text{};               // all lines, each with a line feed
  std::vector<std::size_t> ends{};  // end of each line in `text`
  std::vector<PairOfTexts> pairs{};
  Index sources = 0;
  Index targets = 0;

  std::string_view line(std::size_t n) const {
    const std::size_t begin = n == 0 ? 0 : ends[n - 1];
    return std::string_view(text).substr(begin, ends[n] - begin);
  }
};

// Reads the table. A line that is no sentence pair is left out with --skip-bad, else an InputError.
Table read_table(const SplitOptions& options, const Common& common) {
  std::optional<Progress> progress;
  progress.emplace(common, "split");
  qkv::app::ParallelTextOptions reading;
  const std::array<Index, 2> columns{options.source_column, options.target_column};
  reading.least_columns = std::max(columns[0], columns[1]) + 1;
  reading.stop = &stop_flag();
  reading.progress = [&](Index done, Index total) { progress->bytes(done, total); };
  qkv::app::BadLines bad;
  Index lines = 0;
  const auto leave_out = [&](const InputError& error) {
    if (!options.skip_bad) throw with_skip_bad(error);
    lines = error.line();
    bad.add(error);
  };
  reading.bad_line = leave_out;
  Table table;
  TextNumbers sources;
  TextNumbers targets;
  qkv::app::for_each_row(options.table, reading, [&](const auto& fields, Index line) {
    lines = line;
    for (const Index column : columns) {
      if (!qkv::app::is_blank(fields[static_cast<std::size_t>(column)])) continue;
      leave_out(InputError::at_line(options.name(), line, no_text_in(column)));
      return true;
    }
    if (table.pairs.size() == std::numeric_limits<std::uint32_t>::max()) {
      throw InputError::at_line(options.name(), line, "expected fewer than 2^32 lines");
    }
    table.pairs.push_back({sources.of(fields[static_cast<std::size_t>(columns[0])]),
                           targets.of(fields[static_cast<std::size_t>(columns[1])])});
    table.text += fmt::format("{}\n", fmt::join(fields, "\t"));
    table.ends.push_back(table.text.size());
    return true;
  });
  progress.reset();  // ends the line that it shows
  if (bad.count() > 0) {
    const std::string skipped = bad.summary(lines, "skipped");
    if (table.pairs.empty()) {
      throw InputError(options.name(), "expected sentence pairs, got none: " + skipped);
    }
    warn(common, fmt::format("{}: {}", options.name(), skipped));
  }
  table.sources = sources.count();
  table.targets = targets.count();
  return table;
}

// The size of a part of a table, in different sources and in sentence pairs.
struct PartCount {
  Index sources = 0;
  Index pairs = 0;
};
using PartCounts = std::array<PartCount, std::size(kParts)>;  // in the order of kParts

PartCounts counts_of(const Table& table, const qkv::app::Parts& parts) {
  PartCounts counts;
  for (std::size_t n = 0; n < std::size(kParts); ++n) {
    std::vector<bool> seen(static_cast<std::size_t>(table.sources));
    for (std::size_t pair = 0; pair < table.pairs.size(); ++pair) {
      if (parts.of_pairs[pair] != kParts[n].part) continue;
      ++counts[n].pairs;
      const std::uint32_t source = table.pairs[pair].source;
      if (!seen[source]) ++counts[n].sources;
      seen[source] = true;
    }
  }
  return counts;
}

// Divides the table. Throws InputError if there are too few sources for the requested parts, or no
// sentence pair is left to train on.
qkv::app::Parts divide(const SplitOptions& options, const Table& table) {
  const qkv::app::HoldOut& wanted = options.hold_out;
  if (table.sources <= wanted.test) {
    throw InputError(options.name(),
                     fmt::format("expected more than {} different sources, to hold out {}, got {}",
                                 wanted.test, wanted.test, table.sources));
  }
  qkv::app::Parts parts = divided(table.pairs, wanted);
  if (parts.valid < wanted.valid) {
    throw InputError(
        options.name(),
        fmt::format("expected {} more sources for --valid, with no target that is held out, got {}",
                    wanted.valid, parts.valid));
  }
  if (std::ranges::find(parts.of_pairs, Part::kTrain) == parts.of_pairs.end()) {
    throw InputError(options.name(),
                     "expected a pair to train on that shares nothing with what is held out, got "
                     "none; hold out less");
  }
  return parts;
}

// The lines of a part as blocks of text.
class PartBlocks {
 public:
  PartBlocks(const Table& table, const qkv::app::Parts& parts, Part part)
      : table_(table), parts_(parts), part_(part) {}

  // The next block, empty at the end. Throws Cancelled after a signal.
  std::string_view next() {
    constexpr std::size_t kBlock = std::size_t{1} << 16;
    if (stop_flag().load()) throw qkv::Cancelled("split");
    block_.clear();
    for (; line_ < table_.ends.size() && block_.size() < kBlock; ++line_) {
      if (parts_.of_pairs[line_] == part_) block_ += table_.line(line_);
    }
    return block_;
  }

 private:
  const Table& table_;
  const qkv::app::Parts& parts_;
  Part part_;
  std::size_t line_ = 0;
  std::string block_;
};

// The folder of the output files, which the constructor creates if it is missing. A folder that it
// created is removed by the destructor if it is still empty.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& path) : path_(path) {
    std::error_code failed;
    created_ = std::filesystem::create_directory(path, failed);
    if (failed) throw OutputError(path, failed.message());
  }
  ~OutputFolder() {
    std::error_code ignored;  // remove() fails if the folder is not empty
    if (created_) std::filesystem::remove(path_, ignored);
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

 private:
  std::string path_;
  bool created_ = false;
};

// Writes all files, then renames them into place: none appears before all are written.
void write_parts(const SplitOptions& options, const Table& table, const qkv::app::Parts& parts) {
  const OutputFolder folder(options.folder);
  std::list<StagedFile> files;
  for (const PartName& part : kParts) {
    if (!options.writes(part)) continue;
    PartBlocks blocks(table, parts, part.part);
    files.emplace_back(options.file(part), [&](const std::string& path) {
      qkv::app::write_blocks(path, [&] { return blocks.next(); });
    });
  }
  for (StagedFile& file : files) file.commit();
}

// Checks, before anything is read, that the files can be written without overwriting the table and
// that no file of an earlier split would be left among them.
void check_folder(const SplitOptions& options) {
  std::error_code failed;
  if (!std::filesystem::exists(options.folder, failed)) return check_place(options.folder);
  if (!std::filesystem::is_directory(options.folder, failed)) {
    throw OutputError(options.folder, "it is not a folder");
  }
  for (const PartName& part : kParts) {
    const std::string path = options.file(part);
    if (is_same_file(options.table, path)) {
      throw UsageError(fmt::format("-o {}: {} is the input", options.folder, path));
    }
    if (options.writes(part)) {
      check_place(path);
    } else if (std::filesystem::exists(path, failed)) {
      throw UsageError(
          fmt::format("{} belongs to another split and would remain without --valid: remove it, "
                      "or use another folder",
                      path));
    }
  }
}

std::string summary(const SplitOptions& options, const Table& table, const PartCounts& counts) {
  std::string text = fmt::format("{:<8} pairs {}, different sources {}, different targets {}\n",
                                 "table", table.pairs.size(), table.sources, table.targets);
  for (std::size_t n = 0; n < std::size(kParts); ++n) {
    if (!options.writes(kParts[n])) continue;
    text += fmt::format("{:<8} pairs {}, sources {}: {}{}\n", kParts[n].name, counts[n].pairs,
                        counts[n].sources, shown_name(options.file(kParts[n])),
                        kParts[n].part == Part::kDropped ? ", whose targets are held out" : "");
  }
  return text;
}

Json json_summary(const SplitOptions& options, const Table& table, const PartCounts& counts) {
  Json json;
  json["seed"] = options.hold_out.seed;
  json["pairs"] = table.pairs.size();
  json["sources"] = table.sources;
  json["targets"] = table.targets;
  for (std::size_t n = 0; n < std::size(kParts); ++n) {
    if (!options.writes(kParts[n])) continue;
    Json& part = json[kParts[n].name];
    part["file"] = options.file(kParts[n]);
    part["pairs"] = counts[n].pairs;
    part["sources"] = counts[n].sources;
  }
  return json;
}

void run(SplitOptions options, const Common& common) {
  // A slash at the end is removed, because a path with it has no file name.
  const std::filesystem::path folder(options.folder);
  if (!folder.has_filename() && folder.has_relative_path()) {
    options.folder = folder.parent_path().string();
  }
  check_folder(options);
  const Table table = read_table(options, common);
  const qkv::app::Parts parts = divide(options, table);
  write_parts(options, table, parts);
  const PartCounts counts = counts_of(table, parts);
  print(options.json ? json_text(json_summary(options, table, counts))
                     : summary(options, table, counts));
}

}  // namespace

void add_split(const Command& program, const Common& common) {
  const Command command =
      program.add_command("split", "divide sentence pairs into training and test data");
  const auto options = std::make_shared<SplitOptions>();
  command
      .add_option("TABLE", options->table,
                  "tab-separated text, one pair per line; - is standard input")
      .required()
      .type_name("");
  command.add_option("-o,--output", options->folder, "folder for the files")
      .required()
      .type_name("FOLDER");
  add_number(command, "--hold-out", options->hold_out.test, Bounds<Index>{1},
             "number of different sources for the test data, with all their lines")
      .required();
  add_number(command, "--valid", options->hold_out.valid, Bounds<Index>{1},
             "number of different sources for the validation data (default: none)");
  add_number(command, "--seed", options->hold_out.seed, Bounds<std::uint64_t>{},
             "random seed (default 0)");
  add_columns(command, options->source_column, options->target_column);
  command.add_flag("--skip-bad", options->skip_bad,
                   "skip lines that are not pairs; a warning counts and names them");
  command.add_flag("--json", options->json, "the report as JSON");
  command.footer(kSplitFooter);
  command.callback([options, &common] { run(*options, common); });
}
