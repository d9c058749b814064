// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/array_store.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"

namespace {

using qkv::app::NamedArray;

std::string array_names(const std::vector<NamedArray>& arrays) {
  std::string names;
  for (const NamedArray& array : arrays) names += (names.empty() ? "" : ", ") + array.name;
  return names.empty() ? "none" : names;
}

const NamedArray* find_name(const std::vector<NamedArray>& arrays, std::string_view name) {
  for (const NamedArray& array : arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

bool is_unread(const NamedArray& array) {
  return std::holds_alternative<qkv::app::Unread>(array.array);
}

const NamedArray& pick(const std::vector<NamedArray>& arrays, const ArraySpec& spec,
                       std::string_view role) {
  const NamedArray* array = find_name(arrays, spec.name.empty() ? role : spec.name);
  if (array == nullptr && spec.name.empty() && arrays.size() == 1) array = &arrays.front();
  if (array != nullptr) return *array;
  throw qkv::app::InputError(
      input_name(spec.file),
      fmt::format("expected an array called {}{}, got {}",
                  qkv::app::quoted(spec.name.empty() ? role : spec.name),
                  spec.name.empty() ? " (or FILE:NAME)" : "", array_names(arrays)));
}

}  // namespace

ArraySpec split_spec(const std::string& spec) {
  const auto colon = spec.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::exists(spec, error)) return {spec, ""};
  const std::string file = spec.substr(0, colon);
  if (file != "-" && !std::filesystem::exists(file, error)) return {spec, ""};
  return {file, spec.substr(colon + 1)};
}

qkv::ConstView ArrayStore::get(const std::string& spec, std::string_view role, bool is_input) {
  const ArraySpec parts = split_spec(spec);
  const NamedArray& array = pick(read(parts.file), parts, role);
  if (parts.file == "-" && array.name.empty()) {  // an .npy file
    if (stdin_role_.empty()) {
      stdin_role_ = role;
      stdin_is_input_ = is_input;
    }
    if (stdin_role_ != role && (stdin_is_input_ || is_input)) {
      throw UsageError(fmt::format("{} and {} cannot both be standard input", stdin_role_, role));
    }
  }
  if (const auto* tensor = std::get_if<qkv::Tensor>(&array.array)) return *tensor;
  throw qkv::app::InputError(
      input_name(parts.file),
      fmt::format("expected numbers for {}, got {}", role,
                  is_unread(array) ? qkv::app::describe(array.array) : std::string("text")));
}

bool ArrayStore::has(const std::string& file, std::string_view name) {
  return find_name(read(file), name) != nullptr;
}

std::optional<qkv::ConstView> ArrayStore::find(const std::string& file, std::string_view name) {
  const NamedArray* array = find_name(read(file), name);
  if (array == nullptr) return std::nullopt;
  if (is_unread(*array)) {
    throw qkv::app::InputError(
        input_name(file),
        fmt::format("expected numbers for {}, got {}", name, qkv::app::describe(array->array)));
  }
  const auto* tensor = std::get_if<qkv::Tensor>(&array->array);
  return tensor == nullptr ? std::nullopt : std::optional<qkv::ConstView>(*tensor);
}

const qkv::app::Strings* ArrayStore::find_text(std::string_view name) const {
  for (const File& file : files_) {
    const NamedArray* array = find_name(file.arrays, name);
    if (array == nullptr) continue;
    if (const auto* text = std::get_if<qkv::app::Strings>(&array->array)) return text;
  }
  return nullptr;
}

std::vector<std::string> ArrayStore::files() const {
  std::vector<std::string> files;
  files.reserve(files_.size());
  for (const File& file : files_) files.push_back(file.name);
  return files;
}

const std::vector<NamedArray>& ArrayStore::read(const std::string& file) {
  const auto place = std::ranges::find(files_, file, &File::name);
  if (place != files_.end()) return place->arrays;
  return files_.emplace_back(file, qkv::app::read_arrays(file, &stop_flag())).arrays;
}

std::string shown_file(const std::string& spec) { return input_name(split_spec(spec).file); }
