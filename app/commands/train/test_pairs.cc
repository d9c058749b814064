// SPDX-License-Identifier: Apache-2.0
#include "commands/train/test_pairs.h"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

#include "commands/shell/progress.h"
#include "files/bad_lines.h"
#include "files/parallel_text.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::InputError;

std::vector<std::string> read_lines(const std::string& path) {
  qkv::app::ParallelTextOptions reading;
  reading.empty_lines = qkv::app::EmptyLines::kKept;
  reading.stop = &stop_flag();
  std::vector<std::string> lines;
  qkv::app::for_each_row(path, reading, [&](std::span<const std::string_view> fields, Index) {
    lines.push_back(fmt::format("{}", fmt::join(fields, "\t")));
    return true;
  });
  return lines;
}

}  // namespace

TestPairs read_test_pairs(const std::string& path, const PairColumns& columns, BadPairs bad_pairs,
                          const CheckPair& check, const Common& common) {
  std::optional<Progress> progress;
  progress.emplace(common, "score");
  qkv::app::ParallelTextOptions reading;
  reading.columns = {columns.source, columns.target};
  reading.stop = &stop_flag();
  TestPairs read;
  read.name = input_name(path);
  qkv::app::BadLines bad;
  Index lines = 0;
  const auto leave_out = [&](const InputError& error) {
    if (bad_pairs == BadPairs::kRefused) throw error;
    if (bad_pairs == BadPairs::kSkippable) throw with_skip_bad(error);
    lines = error.line();
    bad.add(error);
  };
  reading.bad_line = leave_out;
  qkv::app::for_each_row(path, reading, [&](const auto& fields, Index line) {
    lines = line;
    qkv::app::TextPair pair{std::string(fields[0]), std::string(fields[1])};
    try {
      // A reference may be empty: the correct translation of noise is no text.
      if (qkv::app::is_blank(pair.source)) {
        throw InputError::at_line(read.name, line, no_text_in(columns.source));
      }
      read.lengths.push_back(check(pair, read.name, line));
    } catch (const InputError& error) {
      leave_out(error);
      return true;
    }
    read.sentences.add(pair.source, pair.target);
    read.pairs.push_back(std::move(pair));
    progress->at(fmt::format("{} pairs", read.pairs.size()));
    return true;
  });
  progress.reset();  // ends the line that it shows
  if (bad.count() > 0) {
    const std::string skipped = bad.summary(lines, "skipped");
    if (read.pairs.empty()) {
      throw InputError(read.name, "expected sentence pairs, got none: " + skipped);
    }
    warn(common, fmt::format("{}: {}", read.name, skipped));
  }
  return read;
}

std::vector<std::string> read_translations(const std::string& path, const TestPairs& pairs) {
  std::vector<std::string> lines = read_lines(path);
  const std::size_t read = lines.size();
  const std::size_t sentences = pairs.sentences.all().size();
  const auto is_expected = [&] {
    return lines.size() == sentences || lines.size() == pairs.pairs.size();
  };
  // Blank lines at the end count as translations only if the number of lines fits with them.
  while (!is_expected() && !lines.empty() && qkv::app::is_blank(lines.back())) lines.pop_back();
  if (lines.size() == sentences) return lines;
  if (lines.size() != pairs.pairs.size()) {
    throw InputError(input_name(path),
                     fmt::format("expected {} lines, one for each different source of {}, or {}, "
                                 "one for each of its lines, got {}",
                                 sentences, pairs.name, pairs.pairs.size(), read));
  }
  std::vector<std::string> firsts;
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const bool is_first = pairs.sentences.find(pairs.pairs[n].source) == firsts.size();
    if (is_first) firsts.push_back(std::move(lines[n]));
  }
  return firsts;
}
