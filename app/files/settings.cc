// SPDX-License-Identifier: Apache-2.0
#include "files/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "files/json_tree.h"

namespace qkv::app {
namespace {

using files::Json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}
Json json_of(const auto& value) { return value; }

const char* kind_of(const Json& value) {
  if (value.is_null()) return "null";
  return value.is_array() ? "a list" : value.is_object() ? "an object" : "a value alone";
}

std::string joined(const Settings& settings, std::string_view start, std::string_view between,
                   std::string_view end) {
  std::string text(start);
  for (const Setting& setting : settings) {
    if (&setting != settings.data()) text += between;
    text += dump(setting.name) + ": " + json_text(setting.value);
  }
  return text += end;
}

// Converts the value of a member. Throws InputError for a list, an object or null.
SettingValue plain(const std::string& path, const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargest) {
    return value.get<std::uint64_t>();
  }
  if (value.is_number_integer()) return value.get<Index>();
  throw InputError(path, fmt::format("member {}: expected text, a number or true or false, got {}",
                                     app::quoted(name), kind_of(value)));
}

}  // namespace

std::string json_text(const SettingValue& value) {
  return std::visit([](const auto& plain) { return dump(json_of(plain)); }, value);
}

std::string settings_text(const Settings& settings) {
  return joined(settings, "{\n  ", ",\n  ", "\n}\n");
}

std::string settings_line(const Settings& settings) { return joined(settings, "{", ", ", "}\n"); }

Settings read_settings(const std::string& path) {
  constexpr files::JsonBounds kMost{
      .what = "a JSON object of settings", .depth = 2, .values = 10000, .bytes = 1 << 20};
  const files::JsonTree tree = files::read_json_tree(path, kMost);
  if (!tree.root.is_object()) {
    throw InputError(path, fmt::format("expected {}, got {}", kMost.what, kind_of(tree.root)));
  }
  Settings settings;
  for (const files::JsonMember& member : tree.members) {
    settings.push_back({member.name, plain(path, member.name, member.value)});
  }
  return settings;
}

Settings settings_of_line(const std::string& path, Index line, std::string_view text) {
  constexpr files::JsonBounds kMost{
      .what = "a JSON object", .depth = 2, .values = 10000, .bytes = 1 << 20};
  const auto refuse = [&](Index, const std::string& detail) {
    const bool is_cut = !text.empty() && detail == files::kEndOfJson;
    throw InputError::at_line(path, line, (is_cut ? "the line is truncated: " : "") + detail);
  };
  const files::JsonTree tree = files::json_tree(text, kMost, refuse);
  if (!tree.root.is_object()) {
    refuse(0, fmt::format("expected {}, got {}", kMost.what, kind_of(tree.root)));
  }
  Settings settings;
  for (const files::JsonMember& member : tree.members) {
    if (member.value.is_structured() || member.value.is_null()) continue;
    settings.push_back({member.name, plain(path, member.name, member.value)});
  }
  return settings;
}

const SettingValue* find_setting(const Settings& settings, std::string_view name) {
  const auto found = std::ranges::find(settings, name, &Setting::name);
  return found == settings.end() ? nullptr : &found->value;
}

}  // namespace qkv::app
