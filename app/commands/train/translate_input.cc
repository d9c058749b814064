// SPDX-License-Identifier: Apache-2.0
#include "commands/train/translate_input.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/utf8.h>

#include "commands/shell/exit_codes.h"

namespace {

using qkv::app::TranslationModel;

// The models that are linked into the program, so that they need no file.
constexpr LinkedModel kLinkedModels[] = {
    {"--demo", qkv::app::english_french_model,
     "without RUN: translate English TEXT, or a file, to French with a model that is linked into "
     "the program"},
    {"--dates", qkv::app::date_model,
     "without RUN: translate dates written in English to ISO 8601 with a model that is "
     "linked into the program"}};

std::size_t index_of(const LinkedModel& model) {
  return static_cast<std::size_t>(&model - std::begin(kLinkedModels));
}

// The words to translate. With a linked model there is no RUN: the first word was parsed as RUN,
// and is put back in front.
std::vector<std::string> words_of(const TranslateOptions& options) {
  std::vector<std::string> words = options.input;
  if (linked_model(options) != nullptr && options.has_run) {
    words.insert(words.begin(), options.run);
  }
  return words;
}

bool is_file(const std::string& name) {
  std::error_code error;
  return std::filesystem::exists(name, error);
}

// The first folder of a path: "runs" of "runs/lines", "/" of "/tmp/lines"; empty without a slash.
std::string first_folder(const std::string& name) {
  const std::size_t end = name.find('/');
  return end == name.npos ? "" : name.substr(0, std::max<std::size_t>(end, 1));
}

// True for a name that is meant as a file even if no such file exists: several words that end in
// .txt or .tsv; or one word with a letter if it begins with an existing folder or has an extension
// of two or more letters or digits, the first a letter. "3/5/1987", "U.S.A", "and/or" are texts.
bool is_path(const std::string& name) {
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0; };
  const std::string extension = std::filesystem::path(name).extension().string();
  if (name.find(' ') != name.npos) return extension == ".txt" || extension == ".tsv";
  if (std::ranges::none_of(name, is_letter)) return false;
  std::error_code error;
  return std::filesystem::is_directory(first_folder(name), error) ||
         (extension.size() > 2 && is_letter(static_cast<unsigned char>(extension[1])) &&
          std::all_of(extension.begin() + 1, extension.end(), is_plain));
}

}  // namespace

void add_linked_models(const Command& command, TranslateOptions& options) {
  options.linked.resize(std::size(kLinkedModels));
  for (const LinkedModel& model : kLinkedModels) {
    command.add_flag(model.option, options.linked[index_of(model)].given, model.help);
  }
}

const LinkedModel* linked_model(const TranslateOptions& options) {
  const auto* found = std::ranges::find_if(kLinkedModels, [&](const LinkedModel& model) {
    return options.linked[index_of(model)].given;
  });
  return found == std::end(kLinkedModels) ? nullptr : found;
}

void check_model_choice(const TranslateOptions& options) {
  std::vector<std::string> chosen;
  const bool is_text = linked_model(options) != nullptr && options.input.empty();
  if (!options.run.empty() && !is_text && is_file(options.run)) {
    chosen.push_back("RUN " + qkv::app::quoted(options.run));
  }
  for (const LinkedModel& model : kLinkedModels) {
    if (options.linked[index_of(model)].given) chosen.emplace_back(model.option);
  }
  if (chosen.empty() && options.run.empty()) {
    throw UsageError(fmt::format("{}RUN, --demo TEXT or --dates TEXT is needed{}",
                                 options.has_run ? "\"\" names no RUN: " : "",
                                 "; see qkv translate --help"));
  }
  if (chosen.size() > 1) {
    throw UsageError(fmt::format("{} and {} exclude each other", chosen[0], chosen[1]));
  }
}

// A single word is a file if such a file exists or is_path() is true. Several words are one text;
// without a linked model, none of them may name a file.
Source source_of(const TranslateOptions& options) {
  const LinkedModel* const linked = linked_model(options);
  const std::vector<std::string> words = words_of(options);
  if (words.empty() || words == std::vector<std::string>{"-"}) return {.file = "-"};
  const auto names_file = [](const std::string& word) { return is_file(word) || is_path(word); };
  if (words.size() == 1 && names_file(words[0])) return {.file = words[0]};
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
  const LinkedModel* const linked = linked_model(options);
  return linked != nullptr ? linked->model() : read_model(options.run, options.model);
}
