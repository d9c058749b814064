// SPDX-License-Identifier: Apache-2.0
#include "commands/train/translation.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "files/parallel_text.h"

namespace {

using qkv::Index;

constexpr Index kWidestBeam = 1000;

}  // namespace

Option add_columns(const Command& command, Index& source, Index& target, const std::string& usual) {
  return command
      .add_parsed(
          "--cols",
          [&source, &target](const std::string& text) {
            const std::size_t comma = std::min(text.find(','), text.size());
            const auto first = qkv::app::parse_number<Index>(text.substr(0, comma));
            const auto second =
                qkv::app::parse_number<Index>(text.substr(std::min(comma + 1, text.size())));
            const auto is_column = [](const auto& n) {
              return n && *n >= 0 && *n < qkv::app::kMostColumns;
            };
            if (!is_column(first) || !is_column(second) || *first == *second) {
              throw BadValue("--cols",
                             fmt::format("expected two different columns, counted from 0, got {}",
                                         qkv::app::quoted(text)));
            }
            source = *first;
            target = *second;
          },
          fmt::format("columns of source and target ({})", usual))
      .type_name("S,T");
}

PairColumns columns_of_run(const std::string& run) {
  if (!qkv::app::holds_run(run)) return {};
  const qkv::app::TrainingOptions options = qkv::app::options_of_run(run, {}, {});
  return {options.source_column, options.target_column};
}

std::string no_text_in(Index column) {
  return fmt::format("expected text in column {} (counted from 0), got none", column);
}

void add_run_model(const Command& command, qkv::app::RunModel& model) {
  add_choice(command, "--model", model, kRunModels,
             "which model of a folder to use: the best in validation (default) or the last");
}

void add_search(const Command& command, qkv::app::SearchOptions& search) {
  add_number(command, "--beam", search.beam, Bounds<Index>{1, kWidestBeam},
             "beam width (default 1: greedy search)");
  add_real(command, "--length-penalty", search.length_penalty,
           "with a beam: translations are compared by log-probability / tokens^X (default 1; 0: "
           "the likeliest wins, which favours short ones)");
}

void check_search(const qkv::app::SearchOptions& search) {
  constexpr double kMostPenalty = 10;
  if (!(search.length_penalty >= 0 && search.length_penalty <= kMostPenalty)) {
    throw UsageError(fmt::format("--length-penalty: expected a number from 0 to {}, got {}",
                                 kMostPenalty, search.length_penalty));
  }
}

std::size_t count_tokens(const qkv::app::TranslationModel& model, std::string_view text,
                         const std::string& file, Index line) {
  const std::vector<std::string> split = model.tokenizer.split(text);
  const Index tokens = std::ssize(split);
  if (tokens > qkv::app::kMostSourceTokens) {
    throw qkv::app::InputError::at_line(
        file, line,
        fmt::format("expected at most {} tokens, got {}", qkv::app::kMostSourceTokens, tokens));
  }
  return split.size();
}

bool is_full(Batch batch, std::size_t lines, std::size_t tokens) {
  switch (batch) {
    case Batch::kPass:
      return lines >= 256 || tokens >= 4096;
    case Batch::kSearch:
      return lines >= 1024 || tokens >= 16384;
  }
  return true;
}

std::vector<std::string> model_files(const std::string& path) {
  std::vector<std::string> files = qkv::app::run_files(path);
  files.push_back(path);
  return files;
}

qkv::app::TranslationModel read_model(const std::string& path, qkv::app::RunModel model) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw qkv::app::InputError(
        path,
        "no such folder or model file; a model from qkv train translates a text by qkv translate "
        "RUN \"TEXT\", and lines of standard input by qkv translate RUN; a model is linked "
        "into the program: qkv translate --demo \"TEXT\"");
  }
  return std::filesystem::is_directory(path, error)
             ? qkv::app::read_translation_model(path, model, &stop_flag())
             : qkv::app::read_model_file(path, &stop_flag());
}
