// SPDX-License-Identifier: Apache-2.0
#include "translator/training/translation_run.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>
#include <qkv/target.h>

#include "files/locked_folder.h"
#include "files/settings.h"
#include "files/text_file.h"
#include "ranks/collective.h"
#include "translator/model/model_names.h"
#include "translator/model/run_folder.h"
#include "translator/training/kept_checkpoints.h"
#include "translator/training/training_settings.h"
#include "translator/training/training_state.h"
#include "translator/training/translation_data.h"
#include "translator/training/translation_training.h"

namespace qkv::app {
namespace {

void check(bool good, const char* argument, const char* rule, const auto& got) {
  if (!good)
    throw Error("train_translation", argument, fmt::format("must be {}, got {}", rule, got));
}

void check_options(const TrainingOptions& o) {
  check(!o.data.empty(), "data", "the name of a file", "\"\"");
  check(o.valid != "-", "valid", "a file, which can be read again", "standard input");
  check(o.source_column != o.target_column, "target_column", "different from the source's",
        o.target_column);
  check(o.min_count >= 1, "min_count", "at least 1", o.min_count);
  check(o.tokenization != Tokenization::kSubword || o.min_count == 1, "min_count",
        "1 for subwords, all of which are known", o.min_count);
  check(o.max_length >= 1, "max_length", "at least 1", o.max_length);
  check(o.batch_tokens >= 1, "batch_tokens", "at least 1", o.batch_tokens);
  check(o.clip > 0, "clip", "positive", o.clip);
  check(o.patience >= 0, "patience", "at least 0", o.patience);
  check(o.patience == 0 || !o.valid.empty(), "patience", "0 without validation data", o.patience);
  check(o.valid_translate >= 1, "valid_translate", "at least 1", o.valid_translate);
  check(o.keep >= 0, "keep", "at least 0", o.keep);
  learning_rate(o.schedule, 1);
}

// A path as config.json has it: absolute, except for standard input.
std::string stored_path(const std::string& path) {
  return path.empty() || path == "-" ? path : std::filesystem::absolute(path).string();
}

// Removes temporary files that a killed process left, then throws OutputError unless the folder
// holds a run or is empty.
void check_folder(const LockedFolder& folder) {
  for (const char* name : kRunFiles) folder.remove_leftovers(name);
  // file() throws for symbolic links.
  for (const char* name : kRunFiles) static_cast<void>(folder.file(name));
  if (folder.holds(kConfigFile)) return;
  const auto names = folder.names();
  if (names.empty()) return;
  throw OutputError(folder.path(),
                    fmt::format("it holds {} but no {}, so it is not a run to resume",
                                app::quoted(names.front()), kConfigFile));
}

// Throws RunMismatch unless the run in the folder has these settings.
void check_same_run(const LockedFolder& folder, const Settings& now) {
  const std::string changed = differences(read_config(folder.file(kConfigFile)), now);
  if (changed.empty()) return;
  throw RunMismatch(fmt::format(
      "{} holds a run with other settings: {}; use another folder, or resume with its own",
      folder.path(), changed));
}

// The subword model of the run in the folder; empty if the options use no subwords, or if the run
// has neither a subword model nor a saved state, so that a model is still to be learned. Throws
// InputError for a malformed model. Without a model, throws RunMismatch if settings that do not
// depend on the data differ, and InputError if there is a state.
std::optional<Subwords> stored_subwords(const LockedFolder& folder,
                                        const TrainingOptions& options) {
  if (options.tokenization != Tokenization::kSubword) return std::nullopt;
  const std::string path = folder.file(kSubwordFile);
  if (folder.holds(kSubwordFile)) {
    try {
      return Subwords(read_text(path));
    } catch (const Error& error) {
      throw InputError(path, error.what());
    }
  }
  if (!folder.holds(kConfigFile)) return std::nullopt;
  // Learning takes time, so the settings of `options` are compared before it. What depends on the
  // data is not known yet: those values are taken from the run.
  const std::string path_of_config = folder.file(kConfigFile);
  RunConfig config = config_of(read_config(path_of_config), path_of_config);
  const Index sizes[] = {config.options.model.source_tokens, config.options.model.target_tokens};
  config.options = options;
  config.options.model.source_tokens = sizes[0];
  config.options.model.target_tokens = sizes[1];
  check_same_run(folder, settings_of(config));
  if (folder.holds(kStateFile)) {
    throw InputError(path, "is missing: without it this run cannot be resumed");
  }
  return std::nullopt;
}

// Throws RunMismatch if the folder holds another run. Writes the settings always, since a resumed
// run may change some, and the tokenizer's files only if the folder lacks them.
void set_up(const LockedFolder& folder, const RunConfig& config, const TranslationData& data) {
  const Settings now = settings_of(config);
  const std::string path = folder.file(kConfigFile);
  if (folder.holds(kConfigFile)) check_same_run(folder, now);
  write_text(path, settings_text(now));
  if (const auto* subwords = std::get_if<Subwords>(&data.tokenizer.units())) {
    if (!folder.holds(kSubwordFile)) {
      write_text(folder.file(kSubwordFile), subwords->bytes());
    }
    return;
  }
  if (!folder.holds(kSourceFile)) {
    write_vocabulary(folder.file(kSourceFile), data.source);
  }
  if (!folder.holds(kTargetFile)) {
    write_vocabulary(folder.file(kTargetFile), data.target);
  }
}

// Copies the first rank's subword model, if there is one, to the other ranks.
void share(Ranks& ranks, std::optional<Subwords>& subwords) {
  std::string bytes = subwords ? subwords->bytes() : "";
  ranks::broadcast(ranks, bytes);
  ranks::agreed(ranks, [&] {
    if (ranks.rank() != 0 && !bytes.empty()) subwords.emplace(bytes);
  });
}

// Throws RunMismatch unless all ranks have the same run folder and the same CPU target: results are
// bit-identical only among processes with one target.
void check_together(Ranks& ranks, const std::string& folder) {
  std::string target;
  ranks::agreed(ranks, [&] { target = cpu_target(); });
  std::string first[] = {folder, target};
  for (std::string& text : first) ranks::broadcast(ranks, text);
  ranks::agreed(ranks, [&] {
    if (first[0] != folder) {
      throw RunMismatch(fmt::format(
          "processes that MPI starts train one run together, but --output is {}, and {} on rank 0; "
          "QKV_RANKS=1 in the environment trains each alone",
          app::quoted(folder), app::quoted(first[0])));
    }
    if (first[1] != target) {
      throw RunMismatch(fmt::format(
          "the CPU target is {}, and {} on rank 0; the results would depend on the rank: set "
          "QKV_TARGET to one that all have",
          target, first[1]));
    }
  });
}

// Throws RunMismatch unless this rank has the data and options of the first rank.
void check_as_first(Ranks& ranks, const std::string& data, const Settings& own) {
  std::string line = settings_line(own);
  ranks::broadcast(ranks, line);
  ranks::agreed(ranks, [&] {
    const Settings of_first = settings_of_line(data, 1, line);
    std::string changed = differences(of_first, own);
    for (const char* name : {"after", "save_every", "keep"}) {
      const std::string first = json_text(*find_setting(of_first, name));
      const std::string here = json_text(*find_setting(own, name));
      if (!changed.empty() || first == here) continue;
      changed = fmt::format("{}: {} -> {}", option_of(name), first, here);
    }
    if (changed.empty()) return;
    throw RunMismatch(fmt::format("the data or settings are not those of rank 0: {}", changed));
  });
}

}  // namespace

Diverged::~Diverged() = default;
RunMismatch::~RunMismatch() = default;

TrainingReport train_translation(const TrainingOptions& options, const std::string& folder_path,
                                 const TrainingHooks& hooks) {
  ranks::OneRank alone;
  Ranks& ranks = options.ranks == nullptr ? alone : *options.ranks;
  const bool is_first = ranks.rank() == 0;
  TrainingHooks own_hooks;
  own_hooks.stop = hooks.stop;
  if (is_first) own_hooks = hooks;

  check_together(ranks, folder_path);
  std::optional<LockedFolder> folder;
  std::optional<Subwords> subwords;
  TranslationData data;
  RunConfig config;
  std::optional<Training> training;
  ranks::agreed(ranks, [&] {
    check_options(options);
    check(options.data != "-" || ranks.count() == 1, "data",
          "a file that all processes can read, where several train", "standard input");
    if (!is_first) return;
    folder.emplace(folder_path);
    check_folder(*folder);
    subwords = stored_subwords(*folder, options);
  });
  share(ranks, subwords);
  ranks::agreed(ranks, [&] {
    data = read_translation_data(options, subwords, own_hooks);
    config = {options, data.train.facts, data.valid.facts, data.subword_hash};
    config.options.data = stored_path(options.data);
    config.options.valid = stored_path(options.valid);
    config.options.model.source_tokens = data.source.size();
    config.options.model.target_tokens = data.target.size();
    training.emplace(config.options, data, is_first ? &*folder : nullptr, own_hooks,
                     ranks);  // throws for invalid options
  });
  check_as_first(ranks, options.data, settings_of(config));
  ranks::agreed(ranks, [&] {
    if (!is_first) return;
    set_up(*folder, config, data);
    training->begin();
  });
  try {
    training->share();
    training->run();
    return training->report();
  } catch (const Diverged&) {
    throw;  // every rank throws Diverged for the same update, so none is left waiting
  } catch (...) {
    if (ranks.count() > 1 && hooks.lone_error) hooks.lone_error();
    throw;
  }
}

bool holds_run(const std::string& folder) {
  std::error_code failed;  // a folder that cannot be read holds no run; using it will report why
  return std::filesystem::exists(std::filesystem::path(folder) / kConfigFile, failed);
}

std::vector<std::string> settings_of_option(std::string_view option) {
  std::vector<std::string> names;
  for (const Setting& setting : settings_of(RunConfig{})) {
    if (option_of(setting.name) == option) names.push_back(setting.name);
  }
  return names;
}

TrainingOptions options_of_run(const std::string& folder, const TrainingOptions& typed,
                               std::span<const std::string> given) {
  const std::string path = (std::filesystem::path(folder) / kConfigFile).string();
  Settings settings = read_config(path);
  const Settings all = settings_of(RunConfig{typed, {}, {}});
  for (const std::string& name : given) {
    const SettingValue* value = find_setting(all, name);
    if (value == nullptr) {
      throw Error("options_of_run", "given", "must be names of settings, got " + app::quoted(name));
    }
    const auto setting = std::ranges::find(settings, name, &Setting::name);
    if (setting != settings.end()) setting->value = *value;
  }
  TrainingOptions options = config_of(settings, path).options;
  options.executor = typed.executor;
  return options;
}

std::vector<std::string> run_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const char* name : kRunFiles) {
    files.push_back((std::filesystem::path(folder) / name).string());
  }
  return files;
}

std::vector<std::string> run_checkpoints(const std::string& folder) {
  return checkpoint_paths(folder);
}

bool is_checkpoint_name(std::string_view name) { return checkpoint_update(name).has_value(); }

TranslationModel read_translation_model(const std::string& folder, RunModel which,
                                        const std::atomic<bool>* stop) {
  const char* name = which == RunModel::kBest ? kBestFile : kModelFile;
  return read_model_file(model_path(folder, name), stop);
}

}  // namespace qkv::app
