// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/expressions.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/utf8.h>
#include <qkv/expression.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/expression_text.h"

namespace {

constexpr const char* kScoreMod = "--score-mod";
constexpr const char* kMaskMod = "--mask-mod";
constexpr const char* kWith = "--with";

void add_expression(const Command& command, const char* name, std::optional<std::string>& target,
                    const char* help) {
  command
      .add_parsed(
          name, [&target](const std::string& text) { target = text; }, help)
      .type_name("EXPRESSION");
}

// Throws the library's error with the option in place of the function's name.
[[noreturn]] void refuse(const char* option, const qkv::Error& error) {
  throw UsageError(
      fmt::format("{}: {}", option, std::string(error.what()).substr(error.function().size() + 2)));
}

using Arrays = std::map<std::string, qkv::Captured>;

// Reads the array of a NAME=FILE[:NAME] that add_expressions() has checked.
ExpressionArray read_array(const std::string& text, ArrayStore& store, Arrays& arrays) {
  const std::string name = text.substr(0, text.find('='));
  const std::string spec = text.substr(name.size() + 1);
  const qkv::ConstView view = store.get(spec, name);
  try {
    if (!arrays.try_emplace(name, view, name).second) {
      throw UsageError(fmt::format("{} names two arrays {}", kWith, qkv::app::quoted(name)));
    }
  } catch (const qkv::Error& error) {
    throw qkv::app::InputError(shown_file(spec), error.what());
  }
  return {name, spec, view};
}

}  // namespace

void add_expressions(const Command& command, ExpressionOptions& options) {
  add_expression(command, kScoreMod, options.score_mod, "new score of each pair, such as 's * 2'");
  add_expression(command, kMaskMod, options.mask_mod, "which pairs may attend, such as 'j <= i'");
  command
      .add_all_parsed(
          kWith,
          [&options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const auto end = text.find('=');
              if (end == std::string::npos || end + 1 == text.size() ||
                  !is_array_name(text.substr(0, end))) {
                throw BadValue(kWith, fmt::format("expected NAME=FILE[:NAME], the first NAME "
                                                  "without a meaning in expressions, got {}",
                                                  qkv::app::quoted(text)));
              }
            }
            options.with = texts;
          },
          "an array for expressions")
      .type_name("NAME=FILE[:NAME]")
      .one_each_time();
}

Expressions read_expressions(const ExpressionOptions& options, ArrayStore& store) {
  if (!options.score_mod && !options.mask_mod && !options.with.empty()) {
    throw UsageError(fmt::format("{} requires {} or {}", kWith, kScoreMod, kMaskMod));
  }
  Expressions result;
  Arrays arrays;
  for (const std::string& text : options.with) {
    result.arrays.push_back(read_array(text, store, arrays));
  }
  if (options.score_mod) {
    const qkv::Expression score =
        read_expression(kScoreMod, *options.score_mod, ExpressionKind::kScore, arrays);
    try {
      result.mods.push_back(qkv::score_mod(score));
    } catch (const qkv::Error& error) {
      refuse(kScoreMod, error);
    }
    result.score_text = score.text();
  }
  if (options.mask_mod) {
    const qkv::Expression mask =
        read_expression(kMaskMod, *options.mask_mod, ExpressionKind::kMask, arrays);
    try {
      result.masks.emplace_back(qkv::mask_mod(mask));
    } catch (const qkv::Error& error) {
      refuse(kMaskMod, error);
    }
    result.mask_text = mask.text();
  }
  return result;
}

nlohmann::ordered_json settings_of(const Expressions& expressions) {
  auto settings = nlohmann::ordered_json::object();
  for (const ExpressionArray& array : expressions.arrays) {
    settings["with"][array.name] = array.spec;
  }
  if (!expressions.mods.empty()) settings["score_mod"] = expressions.score_text;
  if (!expressions.masks.empty()) settings["mask_mod"] = expressions.mask_text;
  return settings;
}

void refuse_expression(const qkv::Error& error) {
  for (const auto& [argument, option] :
       {std::pair<std::string, std::string>{"mods[0]", kScoreMod}, {"mask_mod", kMaskMod}}) {
    if (error.argument() != argument) continue;
    const std::size_t begin = error.function().size() + 2 + argument.size();
    throw UsageError(
        fmt::format("{}: {}{}", option, option.substr(2), std::string(error.what()).substr(begin)));
  }
}
