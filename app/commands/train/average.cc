// SPDX-License-Identifier: Apache-2.0
// `qkv average`: writes a model whose parameters are the means of several models' parameters.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/options.h"
#include "commands/shell/staged_file.h"
#include "commands/train/commands.h"
#include "files/text_file.h"
#include "translator/model/model_names.h"
#include "translator/training/model_average.h"
#include "translator/training/translation_run.h"

namespace {

using qkv::Index;
using qkv::app::InputError;

constexpr const char* kAverageFooter = R"(Examples:
  qkv train dates.tsv -o KEPT --after 3u --batch-tokens 500 --valid-freq 1u --keep 2
  qkv average KEPT -o averaged.safetensors
  qkv average KEPT/checkpoint-3.safetensors RUN/model.safetensors -o averaged.safetensors

The mean of a run's last checkpoints can translate better than any of them, because the noise of
the last batches is averaged out. A folder stands for its checkpoints, which qkv train --keep N
keeps. Sums have 64 bits and are in the order of the files. Models that differ in a vocabulary or a
size cannot be averaged, and models of different seeds should not be, since their hidden units do
not correspond.

The result is a model file for qkv translate and qkv score.)";

constexpr const char* kExtension = ".safetensors";

struct AverageOptions {
  std::vector<std::string> models{};
  std::optional<Index> last{};
  std::string output{};
  qkv::app::ParameterStorage storage = qkv::app::ParameterStorage::kUnchanged;
};

// The paths of a run's last checkpoints: as many as `last` says, or all if it is empty.
std::vector<std::string> checkpoints(const std::string& folder, const std::optional<Index>& last) {
  std::vector<std::string> files = qkv::app::run_checkpoints(folder);
  if (files.empty()) {
    throw InputError(folder, fmt::format("expected checkpoints, got none; qkv train {} --keep 4 "
                                         "keeps the last four from now on",
                                         in_shell(folder)));
  }
  const Index most = last.value_or(std::ssize(files));
  if (most > std::ssize(files)) {
    throw InputError(folder, fmt::format("expected at least {} checkpoints for --last, got {}",
                                         most, files.size()));
  }
  files.erase(files.begin(), files.end() - most);
  return files;
}

bool is_folder(const std::string& model) {
  std::error_code failed;
  return std::filesystem::is_directory(model, failed);
}

std::vector<std::string> files_of(const AverageOptions& options) {
  std::vector<std::string> files;
  for (const std::string& model : options.models) {
    if (is_folder(model)) {
      for (std::string& file : checkpoints(model, options.last)) files.push_back(std::move(file));
    } else {
      files.push_back(model);
    }
  }
  return files;
}

void check(const AverageOptions& options) {
  if (!options.output.ends_with(kExtension)) {
    throw UsageError(fmt::format("-o {}: must end in {}", options.output, kExtension));
  }
  if (std::ranges::find(options.models, "-") != options.models.end()) {
    throw UsageError("-: a model to average must be a file or a folder, got standard input");
  }
  for (const std::string& model : options.models) {
    // A missing file is reported when it is read. A pipe is refused: a model may be read twice.
    std::error_code failed;
    if (is_folder(model) || !std::filesystem::exists(model, failed)) continue;
    if (std::filesystem::is_regular_file(model, failed)) continue;
    throw UsageError(fmt::format("{}: a model to average must be a file or a folder", model));
  }
  if (options.last && std::ranges::none_of(options.models, is_folder)) {
    throw UsageError(
        fmt::format("--last {} requires the folder of a run, and none is named", *options.last));
  }
  check_place(options.output);
}

// The files of a run, to which the output must not be written. If the output is named like a
// checkpoint, they include a file of that name in the run's folder, which the run would later take
// for its checkpoint.
std::vector<std::string> files_of_run(const std::string& folder, const std::string& output) {
  std::vector<std::string> files = qkv::app::run_files(folder);
  for (std::string& file : qkv::app::run_checkpoints(folder)) files.push_back(std::move(file));
  const std::filesystem::path name =
      std::filesystem::path(qkv::app::behind_links(output)).filename();
  if (qkv::app::is_checkpoint_name(name.string())) {
    files.push_back((std::filesystem::path(folder) / name).string());
  }
  return files;
}

void check_output(const AverageOptions& options, const std::vector<std::string>& files) {
  const std::string& output = options.output;
  const auto is_output = [&](const std::string& file) { return is_same_file(output, file); };
  for (const std::string& model : options.models) {
    if (is_folder(model) && std::ranges::any_of(files_of_run(model, output), is_output)) {
      throw UsageError(fmt::format("-o {}: must not be a file of the run {}", output, model));
    }
  }
  const auto same = std::ranges::find_if(files, is_output);
  if (same == files.end()) return;
  throw UsageError(fmt::format("-o {}: the same file as the input {}", output, *same));
}

void write(const AverageOptions& options, const qkv::app::TranslationModel& mean) {
  try {
    qkv::app::write_model_file(options.output, mean, {.storage = options.storage});
  } catch (const qkv::Error& error) {  // about a number that is too large for 16 bits
    using Storage = qkv::app::Choice<qkv::app::ParameterStorage>;
    const auto* dtype =
        std::ranges::find(qkv::app::kParameterStorages, options.storage, &Storage::value);
    throw UsageError(fmt::format("--dtype {}: {}", dtype->name,
                                 std::string(error.what()).substr(error.function().size() + 2)));
  }
}

void run(const AverageOptions& options) {
  check(options);
  const std::vector<std::string> files = files_of(options);
  check_output(options, files);
  const qkv::app::TranslationModel mean = qkv::app::average_models(files, &stop_flag());
  write(options, mean);
  std::string text = fmt::format("{}: {} parameters, the mean of {}\n", shown_name(options.output),
                                 qkv::parameter_count(mean.translator), files.size());
  for (const std::string& file : files) text += fmt::format("  {}\n", shown_name(file));
  print(text);
}

}  // namespace

void add_average(const Command& program, const Common&) {
  const Command command = program.add_command("average", "average the parameters of models");
  const auto options = std::make_shared<AverageOptions>();
  command
      .add_option("RUN", options->models,
                  "folders of runs with checkpoints, or model files, any number of either")
      .required()
      .any_number()
      .type_name("");
  command.add_option("-o,--output", options->output, "the model file to write")
      .required()
      .type_name("FILE");
  add_number(command, "--last", options->last, Bounds<Index>{1, kLargestSize},
             "how many of a folder's last checkpoints to average (default: all of them)");
  add_choice(
      command, "--dtype", options->storage, qkv::app::kParameterStorages,
      "type of the parameters in the file (default f32); 16 bits halve its size and round each "
      "parameter once");
  command.footer(kAverageFooter);
  command.callback([options] { run(*options); });
}
