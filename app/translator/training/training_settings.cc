// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_settings.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/translation_model.h>
#include <qkv/error.h>

#include "files/parallel_text.h"
#include "translator/model/model_names.h"

namespace qkv::app {
namespace {

// Settings that may change when a run is resumed.
constexpr std::string_view kMayChange[] = {"data",  "valid",      "skip_bad",
                                           "after", "save_every", "keep"};

// Settings that earlier versions did not write to config.json, with the values that they implied.
const Setting kImplied[] = {{"encoder_layers", Index{1}},
                            {"tied_embeddings", "none"},
                            {"vocab", Index{8000}},
                            {"subword_model", "unigram"},
                            {"subword_hash", ""},
                            {"valid_translate", Index{200}},
                            {"best", "loss"},
                            {"keep", Index{0}},
                            {"skip_bad", false}};

// Calls visit(name, member) for each setting. Enumerations except LetterCase are visited with a
// third argument, the names of their values.
template <class Config, class Visit>
void for_each_setting(Config& config, Visit& visit) {
  auto& o = config.options;
  visit("data", o.data);
  visit("data_pairs", config.train.pairs);
  visit("data_left_out", config.train.left_out);
  visit("data_hash", config.train.hash);
  visit("valid", o.valid);
  visit("valid_pairs", config.valid.pairs);
  visit("valid_left_out", config.valid.left_out);
  visit("valid_hash", config.valid.hash);
  visit("source_column", o.source_column);
  visit("target_column", o.target_column);
  visit("skip_bad", o.skip_bad);
  visit("tokenize", o.tokenization, kTokenizations);
  visit("vocab", o.subwords.vocabulary);
  visit("subword_model", o.subwords.algorithm, kSubwordAlgorithms);
  visit("subword_hash", config.subword_hash);
  visit("lower", o.letters);
  visit("min_count", o.min_count);
  visit("max_length", o.max_length);
  visit("source_tokens", o.model.source_tokens);
  visit("target_tokens", o.model.target_tokens);
  visit("attention", o.model.attention, kTranslatorAttentions);
  visit("embedding", o.model.embedding);
  visit("hidden", o.model.hidden);
  visit("encoder_layers", o.model.encoder_layers);
  visit("units", o.model.units);
  visit("heads", o.model.heads);
  visit("tied_embeddings", o.model.tied_embeddings, kTiedEmbeddings);
  visit("dropout", o.model.dropout);
  visit("label_smoothing", o.model.label_smoothing);
  visit("batch_tokens", o.batch_tokens);
  visit("learning_rate", o.schedule.rate);
  visit("warmup", o.schedule.warmup);
  visit("decay", o.schedule.decay);
  visit("clip", o.clip);
  visit("beta1", o.adam.beta1);
  visit("beta2", o.adam.beta2);
  visit("epsilon", o.adam.epsilon);
  visit("weight_decay", o.adam.weight_decay);
  visit("validate_every", o.validate_every);
  visit("valid_translate", o.valid_translate);
  visit("best", o.best, kBestBy);
  visit("patience", o.patience);
  visit("seed", o.seed);
  visit("after", o.after);
  visit("save_every", o.save_every);
  visit("keep", o.keep);
}

struct Writer {
  Settings settings{};

  void operator()(const char* name, const auto& value) {
    settings.push_back({name, SettingValue(value)});
  }
  void operator()(const char* name, const std::uint64_t& value) {
    const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    settings.push_back(
        {name, fits ? SettingValue(static_cast<Index>(value)) : SettingValue(value)});
  }
  void operator()(const char* name, const LetterCase& value) {
    settings.push_back({name, value == LetterCase::kLower});
  }
  void operator()(const char* name, const Budget& value) {
    settings.push_back({name, to_string(value)});
  }
  template <class Value, std::size_t n>
  void operator()(const char* name, const Value& value, const Choice<Value> (&choices)[n]) {
    const auto* chosen = std::ranges::find(choices, value, &Choice<Value>::value);
    settings.push_back({name, std::string(chosen->name)});
  }
};

// Sets each member to the value of its setting in a file.
struct Reader {
  const Settings& settings;
  const std::string& path;

  void operator()(const char* name, std::string& value) const {
    value = held<std::string>(name, "text");
  }
  void operator()(const char* name, Index& value) const {
    value = held<Index>(name, "a whole number");
  }
  void operator()(const char* name, std::uint64_t& value) const {
    const SettingValue& setting = found(name);
    const auto* whole = std::get_if<Index>(&setting);
    if (whole != nullptr && *whole < 0) refuse(name, "a whole number from 0");
    value = whole != nullptr ? static_cast<std::uint64_t>(*whole)
                             : held<std::uint64_t>(name, "a whole number from 0");
  }
  void operator()(const char* name, double& value) const {
    const SettingValue& setting = found(name);
    constexpr auto kInfinity = std::numeric_limits<double>::infinity();
    if (const auto* whole = std::get_if<Index>(&setting)) {
      value = static_cast<double>(*whole);
    } else if (setting == SettingValue("Infinity")) {
      value = kInfinity;
    } else {
      value = held<double>(name, "a number");
    }
  }
  void operator()(const char* name, bool& value) const {
    value = held<bool>(name, "true or false");
  }
  void operator()(const char* name, LetterCase& value) const {
    value = held<bool>(name, "true or false") ? LetterCase::kLower : LetterCase::kKept;
  }
  void operator()(const char* name, Budget& value) const {
    const auto& text = held<std::string>(name, "a budget");
    try {
      value = text.empty() ? Budget{} : parse_budget(text);
    } catch (const Error&) {
      refuse(name, "a budget such as \"10e,5000u\"");
    }
  }
  template <class Value, std::size_t n>
  void operator()(const char* name, Value& value, const Choice<Value> (&choices)[n]) const {
    const auto& text = held<std::string>(name, "a name");
    const auto* chosen = std::ranges::find(choices, text, &Choice<Value>::name);
    if (chosen == std::end(choices)) refuse(name, "a name that this version knows");
    value = chosen->value;
  }

 private:
  const SettingValue& found(const char* name) const {
    const SettingValue* value = find_setting(settings, name);
    if (value == nullptr) {
      throw InputError(path, fmt::format("expected a setting \"{}\", got none", name));
    }
    return *value;
  }
  template <class T>
  const T& held(const char* name, const char* kind) const {
    const T* value = std::get_if<T>(&found(name));
    if (value == nullptr) refuse(name, kind);
    return *value;
  }
  [[noreturn]] void refuse(const char* name, const char* rule) const {
    throw InputError(path,
                     fmt::format("{}: expected {}, got {}", name, rule, json_text(found(name))));
  }
};

std::string text_of(const SettingValue* value) {
  return value == nullptr ? "absent" : json_text(*value);
}

struct Difference {
  std::string name{};  // the option that sets the setting; name_of() the setting if there is none
  std::string before{};
  std::string after{};
};

// The name that messages give to a setting that no option sets. A fact about data is named after
// the option of the data: data_pairs is "DATA pairs".
std::string name_of(const std::string& setting) {
  for (const auto& [prefix, option] :
       {std::pair{"data_", "DATA"}, std::pair{"valid_", "--valid"}}) {
    if (!setting.starts_with(prefix)) continue;
    std::string fact = setting.substr(std::string_view(prefix).size());
    std::ranges::replace(fact, '_', ' ');
    return fmt::format("{} {}", option, fact);
  }
  return setting;
}

// Adds the old and the new value of a setting, even if they are equal, unless the setting may
// change. Adjacent settings that one option sets become one entry: "--cols: 0,1 -> 1,0".
void compare(const std::string& setting, const SettingValue* was, const SettingValue* is,
             std::vector<Difference>& all) {
  if (std::ranges::find(kMayChange, setting) != std::end(kMayChange)) return;
  // A setting that only the old file has is unknown to this version, so no option sets it.
  const std::string option = is != nullptr ? option_of(setting) : "";
  if (!option.empty() && !all.empty() && all.back().name == option) {
    all.back().before += "," + text_of(was);
    all.back().after += "," + text_of(is);
  } else {
    all.push_back({option.empty() ? name_of(setting) : option, text_of(was), text_of(is)});
  }
}

}  // namespace

Settings settings_of(const RunConfig& config) {
  Writer writer;
  for_each_setting(config, writer);
  return std::move(writer.settings);
}

Settings read_config(const std::string& path) {
  Settings settings = read_settings(path);
  for (const Setting& implied : kImplied) {
    if (find_setting(settings, implied.name) == nullptr) settings.push_back(implied);
  }
  return settings;
}

RunConfig config_of(const Settings& settings, const std::string& path) {
  RunConfig config;
  const Reader reader{settings, path};
  for_each_setting(config, reader);
  for (const auto& [name, column] : {std::pair{"source_column", config.options.source_column},
                                     std::pair{"target_column", config.options.target_column}}) {
    if (column >= 0 && column < kMostColumns) continue;
    throw InputError(path, fmt::format("{}: expected a column from 0 to {}, got {}", name,
                                       kMostColumns - 1, column));
  }
  return config;
}

std::string differences(const Settings& old, const Settings& now) {
  constexpr std::size_t kMostShown = 12;
  std::vector<Difference> all;
  for (const Setting& setting : now) {
    compare(setting.name, find_setting(old, setting.name), &setting.value, all);
  }
  // The old file may have any number of settings; each is looked up in `now`, which is short.
  for (const Setting& setting : old) {
    if (find_setting(now, setting.name) == nullptr) {
      compare(setting.name, &setting.value, nullptr, all);
    }
  }
  std::erase_if(all, [](const Difference& d) { return d.before == d.after; });
  std::string text;
  for (const Difference& d : std::span(all).first(std::min(kMostShown, all.size()))) {
    text += fmt::format("{}{}: {} -> {}", text.empty() ? "" : "; ", d.name, d.before, d.after);
  }
  if (all.size() > kMostShown) text += fmt::format("; and {} more", all.size() - kMostShown);
  return text;
}

}  // namespace qkv::app
