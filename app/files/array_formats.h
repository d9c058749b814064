// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_ARRAY_FORMATS_H_
#define QKV_FILES_ARRAY_FORMATS_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/array_file.h>

#include "files/file.h"

// The functions that each array format registers in the list of array_formats.cc, and the checks
// common to all formats (array_checks.cc).
namespace qkv::files {

// The number of bytes at the start of a file that identify its format.
inline constexpr std::size_t kArrayFileHead = 16;
// Whether a file that starts with `head` claims to be of the format. `head` is the file's first
// kArrayFileHead bytes, or all of a shorter file.
bool is_npy(std::string_view head);
bool is_npz(std::string_view head);
bool is_safetensors(std::string_view head);
// Returns the first format in the list that claims `head`, or none.
std::optional<app::ArrayFormat> claimed_format(std::string_view head);
// The extensions of all formats: ".npy, .npz, .safetensors".
std::string array_extensions();

// Throws InputError, naming `format`, unless `claims` accepts the head of the file. Reads only the
// head, since a pipe may be endless.
void check_head(InputFile& file, bool (*claims)(std::string_view head), std::string_view format);

// Each function reads all arrays of a file from which nothing has been read yet.
std::vector<app::NamedArray> read_npy(InputFile& file);
std::vector<app::NamedArray> read_npz(InputFile& file);
std::vector<app::NamedArray> read_safetensors(InputFile& file);

// Throws Error in the name of `function` unless there are arrays and each has a distinct UTF-8
// name.
void check_names(std::string_view function, std::span<const app::NamedView> arrays);

}  // namespace qkv::files

#endif  // QKV_FILES_ARRAY_FORMATS_H_
