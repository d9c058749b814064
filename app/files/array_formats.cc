// SPDX-License-Identifier: Apache-2.0
// The list of array formats, and the functions that choose a format from it.
#include "files/array_formats.h"

#include <string>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

void write_one_npy(const std::string& path, std::span<const NamedView> arrays) {
  if (arrays.size() != 1) {
    throw Error("write_arrays", "arrays",
                fmt::format("must be one for a .npy file, got {}", arrays.size()));
  }
  write_npy(path, arrays.front().array);
}

void write_stored_npz(const std::string& path, std::span<const NamedView> arrays) {
  write_npz(path, arrays);
}

struct Format {
  ArrayFormat format;
  std::string_view extension;
  bool (*claims)(std::string_view head);
  std::vector<NamedArray> (*read)(files::InputFile& file);
  void (*write)(const std::string& path, std::span<const NamedView> arrays);
};
constexpr Format kFormats[] = {
    {ArrayFormat::kNpy, ".npy", files::is_npy, files::read_npy, write_one_npy},
    {ArrayFormat::kNpz, ".npz", files::is_npz, files::read_npz, write_stored_npz},
    {ArrayFormat::kSafetensors, ".safetensors", files::is_safetensors, files::read_safetensors,
     write_safetensors},
};

}  // namespace
}  // namespace qkv::app

namespace qkv::files {

std::optional<app::ArrayFormat> claimed_format(std::string_view head) {
  for (const app::Format& format : app::kFormats) {
    if (format.claims(head)) return format.format;
  }
  return std::nullopt;
}

std::string array_extensions() {
  std::string all;
  for (const app::Format& format : app::kFormats) {
    all += fmt::format("{}{}", all.empty() ? "" : ", ", format.extension);
  }
  return all;
}

}  // namespace qkv::files

namespace qkv::app {

std::string describe(const Array& array) {
  if (const auto* tensor = std::get_if<Tensor>(&array)) return qkv::describe(tensor->view());
  if (const auto* strings = std::get_if<Strings>(&array)) {
    return fmt::format("text {}", to_string(strings->shape));
  }
  const auto& [dtype, shape] = std::get<Unread>(array);
  constexpr std::size_t kLongest = 32;
  const std::string name = quoted(dtype, kLongest);
  return fmt::format("{} {} (unsupported type)", name.substr(1, name.size() - 2), to_string(shape));
}

std::optional<ArrayFormat> array_format(std::string_view path) {
  for (const Format& format : kFormats) {
    if (path.ends_with(format.extension)) return format.format;
  }
  return std::nullopt;
}

std::vector<NamedArray> read_arrays(const std::string& path, const std::atomic<bool>* stop,
                                    std::optional<ArrayFormat> only) {
  files::InputFile file(path, stop);
  const std::string_view head = file.peek(files::kArrayFileHead);
  std::string extensions;
  for (const Format& format : kFormats) {
    if (only && format.format != *only) continue;
    if (format.claims(head)) return format.read(file);
    extensions += fmt::format("{}{}", extensions.empty() ? "" : ", ", format.extension);
  }
  throw InputError::at_byte(
      file.name(), 0,
      fmt::format("expected an array file ({}), got {}", extensions,
                  head.empty() ? "an empty file" : quoted(head.substr(0, 8))));
}

void write_arrays(const std::string& path, ArrayFormat format, std::span<const NamedView> arrays) {
  for (const Format& entry : kFormats) {
    if (entry.format == format) return entry.write(path, arrays);
  }
  throw Error("write_arrays", "format", "is not in the list of array formats");
}

}  // namespace qkv::app
