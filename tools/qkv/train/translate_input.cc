// SPDX-License-Identifier: Apache-2.0
#include "train/translate_input.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "io/file_kind.h"
#include "shell/exit_codes.h"

namespace {

using qkv::app::TranslationModel;

// The models that need no file.
constexpr LinkedModel kLinkedModels[] = {
    {"--demo", qkv::app::english_french_model,
     "translate English TEXT, or the lines of an existing file, to French with a model that is "
     "linked into the program (a single -: lines of standard input)"},
    {"--dates", qkv::app::date_model,
     "the same from dates, as English writes them, to ISO 8601: another model"}};

std::size_t index_of(const LinkedModel& model) {
  return static_cast<std::size_t>(&model - std::begin(kLinkedModels));
}

const std::vector<std::string>& words_of(const TranslateOptions& options,
                                         const LinkedModel& model) {
  return options.linked[index_of(model)];
}

bool is_file(const std::string& name) {
  std::error_code error;
  return std::filesystem::exists(name, error);
}

// "runs" of "runs/lines", "/" of "/tmp/lines"; empty without a slash.
std::string first_folder(const std::string& name) {
  const std::size_t end = name.find('/');
  return end == name.npos ? "" : name.substr(0, std::max<std::size_t>(end, 1));
}

// Names that are meant to be files even if there is none: one word with a letter, and an extension
// or a first folder that exists. "3/5/1987", "U.S.A" and "and/or" are texts.
bool is_path(const std::string& name) {
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0; };
  if (name.find(' ') != name.npos || std::ranges::none_of(name, is_letter)) return false;
  const std::string extension = std::filesystem::path(name).extension().string();
  std::error_code error;
  return std::filesystem::is_directory(first_folder(name), error) ||
         (extension.size() > 2 && is_letter(static_cast<unsigned char>(extension[1])) &&
          std::all_of(extension.begin() + 1, extension.end(), is_plain));
}

}  // namespace

void add_linked_models(const Command& command, TranslateOptions& options) {
  options.linked.resize(std::size(kLinkedModels));
  for (const LinkedModel& model : kLinkedModels) {
    command.add_option(model.option, options.linked[index_of(model)], model.help)
        .type_name("TEXT...");
  }
}

const LinkedModel* linked_model(const TranslateOptions& options) {
  const auto* found = std::ranges::find_if(
      kLinkedModels, [&](const LinkedModel& model) { return !words_of(options, model).empty(); });
  return found == std::end(kLinkedModels) ? nullptr : found;
}

void check_model_choice(const TranslateOptions& options) {
  std::vector<std::string> chosen;
  if (!options.run.empty()) chosen.push_back("RUN " + qkv::app::quoted(options.run));
  for (const LinkedModel& model : kLinkedModels) {
    if (!words_of(options, model).empty()) chosen.emplace_back(model.option);
  }
  if (chosen.empty()) {
    throw UsageError("RUN, --demo TEXT or --dates TEXT is needed; see qkv translate --help");
  }
  if (chosen.size() > 1) {
    throw UsageError(fmt::format("{} and {} exclude each other", chosen[0], chosen[1]));
  }
}

// An existing file, or a name that is meant to be one, is a file; anything else is a text.
Source source_of(const TranslateOptions& options) {
  const LinkedModel* const linked = linked_model(options);
  const std::vector<std::string>& words =
      linked != nullptr ? words_of(options, *linked) : options.input;
  if (words.empty() || words == std::vector<std::string>{"-"}) return {.file = "-"};
  const auto names_file = [](const std::string& word) { return is_file(word) || is_path(word); };
  if (words.size() == 1 && (linked != nullptr ? is_file(words[0]) : names_file(words[0]))) {
    return {.file = words[0]};
  }
  const auto file = std::ranges::find_if(words, names_file);
  if (linked == nullptr && words.size() > 1 && file != words.end()) {
    throw UsageError(fmt::format("expected one FILE or the words of a text, got {} among {} words",
                                 qkv::app::quoted(*file), words.size()));
  }
  Source source{.text = fmt::format("{}", fmt::join(words, " "))};
  if (!qkv::app::from_utf8(source.text)) {
    throw UsageError(fmt::format("{}: expected UTF-8 text, got {}",
                                 linked != nullptr ? linked->option : "TEXT",
                                 qkv::app::quoted(source.text)));
  }
  return source;
}

TranslationModel model_of(const TranslateOptions& options) {
  if (const LinkedModel* linked = linked_model(options)) return linked->model();
  if (!is_file(options.run)) {
    throw qkv::app::InputError(
        options.run,
        "no such folder or model file; a model from qkv train translates a text by qkv translate "
        "RUN \"TEXT\", and lines of standard input by qkv translate RUN; a model is linked "
        "into the program: qkv translate --demo \"TEXT\"");
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(options.run, error) &&
      qkv::app::file_kind(options.run, &stop_flag()) != qkv::app::FileKind::kSafetensors) {
    throw qkv::app::InputError(
        options.run,
        "expected the folder of a run or a .safetensors model, got another kind of file");
  }
  return read_model(options.run, options.model);
}
