// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/settings.h>
#include <qkv/app/text_file.h>
#include <qkv/app/utf8.h>

namespace qkv::app {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}
Json json_of(const auto& value) { return value; }

std::string joined(const Settings& settings, std::string_view start, std::string_view between,
                   std::string_view end) {
  std::string text(start);
  for (const Setting& setting : settings) {
    if (&setting != settings.data()) text += between;
    text += dump(setting.name) + ": " + json_text(setting.value);
  }
  return text += end;
}

// Takes the events of the JSON parser; false ends it, and `wrong` says why.
class SettingsEvents {
 public:
  Settings settings{};
  std::string wrong{};

  bool start_object(std::size_t) {
    if (std::exchange(open_, true)) return refuse("got an object");
    return true;
  }
  static bool end_object() { return true; }
  bool key(std::string& name) {
    if (!names_.insert(name).second) {
      wrong = fmt::format("member {} comes twice", app::quoted(name));
      return false;
    }
    settings.push_back({std::move(name), {}});
    return true;
  }
  bool string(std::string& value) { return take(std::move(value)); }
  bool boolean(bool value) { return take(value); }
  bool number_integer(std::int64_t value) { return take(Index{value}); }
  bool number_unsigned(std::uint64_t value) {
    const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    return fits ? take(static_cast<Index>(value)) : take(value);
  }
  bool number_float(double value, const std::string&) { return take(value); }
  bool null() { return refuse("got null"); }
  bool start_array(std::size_t) { return refuse("got a list"); }
  static bool end_array() { return true; }
  static bool binary(nlohmann::json::binary_t&) { return false; }
  template <class Exception>
  bool parse_error(std::size_t byte, const std::string&, const Exception&) {
    wrong = fmt::format("byte {}: expected a JSON object of settings", byte);
    return false;
  }

 private:
  bool take(SettingValue value) {
    if (!open_) return refuse("got a value alone");
    settings.back().value = std::move(value);
    return true;
  }
  bool refuse(const char* got) {
    wrong = settings.empty()
                ? fmt::format("expected a JSON object of settings, {}", got)
                : fmt::format("member {}: expected text, a number or true or false, {}",
                              app::quoted(settings.back().name), got);
    return false;
  }

  bool open_ = false;
  std::unordered_set<std::string> names_{};
};

}  // namespace

std::string json_text(const SettingValue& value) {
  return std::visit([](const auto& plain) { return dump(json_of(plain)); }, value);
}

std::string settings_text(const Settings& settings) {
  return joined(settings, "{\n  ", ",\n  ", "\n}\n");
}

std::string settings_line(const Settings& settings) { return joined(settings, "{", ", ", "}\n"); }

Settings read_settings(const std::string& path) {
  const std::string text = read_text(path);
  SettingsEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    throw InputError(path, events.wrong);
  }
  return std::move(events.settings);
}

const SettingValue* find_setting(const Settings& settings, std::string_view name) {
  const auto found = std::ranges::find(settings, name, &Setting::name);
  return found == settings.end() ? nullptr : &found->value;
}

}  // namespace qkv::app
