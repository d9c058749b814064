// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_JSON_VALUES_H_
#define QKV_COMMANDS_SHELL_JSON_VALUES_H_

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/array_file.h>

// Conversions of results to JSON.

// A number; non-finite ones, which JSON lacks, are the strings "NaN", "Infinity", "-Infinity".
nlohmann::ordered_json json_number(double value);

// An array as {"shape": [2,3], "dtype": "float32", "data": [[...],[...]]}; dtype "text" for text.
nlohmann::ordered_json json_array(const qkv::app::ArrayView& array);

// The numbers of an array as nested lists: [[...],[...]].
nlohmann::ordered_json json_data(const qkv::ConstView& view);

// The settings of a command, a JSON object, as a part of a line: "score dot, scale 0.5, causal". A
// member that is an object holds texts: "with slope=a.npy table=b.npy".
std::string settings_text(const nlohmann::ordered_json& settings);

// JSON text with one line for each member of the outermost object. Invalid UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::ordered_json& value);

#endif  // QKV_COMMANDS_SHELL_JSON_VALUES_H_
