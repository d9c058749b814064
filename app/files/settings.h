// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_SETTINGS_H_
#define QKV_FILES_SETTINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/view.h>

namespace qkv::app {

// Named values in a fixed order, the members of a flat JSON object.
using SettingValue = std::variant<bool, Index, std::uint64_t, double, std::string>;
struct Setting {
  std::string name{};
  SettingValue value{};
};
using Settings = std::vector<Setting>;

// Returns a value as JSON: true, 12, 0.002, "text". Non-finite numbers, which JSON lacks, are
// strings: "NaN", "Infinity", "-Infinity". Different numbers have different texts: a double is
// written with the fewest digits that round-trip. Invalid UTF-8 becomes U+FFFD.
std::string json_text(const SettingValue& value);

// The settings as a JSON object, {"a": 1, "b": "x"}: settings_text() writes one member per line,
// settings_line() writes all on one line.
std::string settings_text(const Settings& settings);
std::string settings_line(const Settings& settings);

// Reads the settings in a file. Whole numbers are returned as Index, or as uint64 if necessary.
// Throws InputError for a file that is missing, is not a JSON object, has duplicate members, or
// contains lists, objects or null.
Settings read_settings(const std::string& path);

// Parses `text`, which is line `line` of a file in which each line is a JSON object of settings.
// Members that are lists, objects or null are left out. Throws InputError with the line.
Settings settings_of_line(const std::string& path, Index line, std::string_view text);

// Returns the value of the setting `name`, or null if there is none.
const SettingValue* find_setting(const Settings& settings, std::string_view name);

}  // namespace qkv::app

#endif  // QKV_FILES_SETTINGS_H_
