// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_ARRAY_FORMATS_H_
#define QKV_IO_ARRAY_FORMATS_H_

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <qkv/app/array_file.h>

#include "io/file.h"

// What a format of array files gives to the list in array_formats.cc, and what all check
// (array_checks.cc).
namespace qkv::io {

// Whether a file that begins so claims to be of the format. `head` is the file's first
// kArrayFileHead bytes, or all of a shorter file.
inline constexpr std::size_t kArrayFileHead = 16;
bool is_npy(std::string_view head);
bool is_npz(std::string_view head);
bool is_safetensors(std::string_view head);
// The first of the list that does.
std::optional<app::ArrayFormat> claimed_format(std::string_view head);

// InputError unless the file claims so; nothing else of it is read, since a pipe may be endless.
void check_head(InputFile& file, bool (*claims)(std::string_view head), std::string_view format);

// All arrays of a file that nothing was read from yet.
std::vector<app::NamedArray> read_npy(InputFile& file);
std::vector<app::NamedArray> read_npz(InputFile& file);
std::vector<app::NamedArray> read_safetensors(InputFile& file);

// Throws Error of `function` unless there are arrays and each has a UTF-8 name of its own.
void check_names(std::string_view function, std::span<const app::NamedView> arrays);

}  // namespace qkv::io

#endif  // QKV_IO_ARRAY_FORMATS_H_
