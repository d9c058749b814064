// SPDX-License-Identifier: Apache-2.0
// The list of array formats.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <qkv/app/array_file.h>
#include <qkv/error.h>

#include "io/file.h"

namespace qkv::app {
namespace {

struct Format {
  ArrayFormat format;
  std::string_view extension;
};
constexpr Format kFormats[] = {
    {ArrayFormat::kNpy, ".npy"},
    {ArrayFormat::kNpz, ".npz"},
};

bool is_archive(const std::string& path) {
  if (path == "-") return false;
  io::InputFile file(path);
  std::array<char, 2> magic{};
  return file.read(magic.data(), magic.size()) == magic.size() && magic[0] == 'P' &&
         magic[1] == 'K';
}

}  // namespace

std::optional<ArrayFormat> array_format(std::string_view path) {
  for (const Format& format : kFormats) {
    if (path.ends_with(format.extension)) return format.format;
  }
  return std::nullopt;
}

std::vector<NamedArray> read_arrays(const std::string& path) {
  if (is_archive(path)) return read_npz(path);
  std::vector<NamedArray> arrays;
  arrays.push_back({"", read_npy(path)});
  return arrays;
}

void write_arrays(const std::string& path, ArrayFormat format, std::span<const NamedView> arrays) {
  if (format == ArrayFormat::kNpz) return write_npz(path, arrays);
  if (arrays.size() != 1) {
    throw Error("write_arrays", "arrays",
                fmt::format("must be one for a .npy file, got {}", arrays.size()));
  }
  write_npy(path, arrays.front().array);
}

}  // namespace qkv::app
