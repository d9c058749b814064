// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_ARRAY_STORE_H_
#define QKV_COMMANDS_SHELL_ARRAY_STORE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/view.h>

// The help text for what get() accepts.
inline constexpr const char* kArrayType = "FILE[:NAME]";

// A parsed FILE[:NAME].
struct ArraySpec {
  std::string file{};
  std::string name{};  // "": not given
};

// A colon may be part of a file name: if the whole string names an existing file, it is the file.
ArraySpec split_spec(const std::string& spec);

// The array files of one command line. Each is read once and kept until the end.
class ArrayStore {
 public:
  // The numbers that `spec` names: FILE, or FILE:NAME for one of several arrays ("-": standard
  // input). Without a name, a file of several arrays yields the one called `role`.
  // Throws InputError.
  qkv::ConstView get(const std::string& spec, std::string_view role);
  // The array of this name in a file, if it exists and holds numbers.
  std::optional<qkv::ConstView> find(const std::string& file, std::string_view name);
  // Text of this name in any of the files read so far, or null.
  const qkv::app::Strings* find_text(std::string_view name) const;
  // The files read so far, "-" for standard input.
  std::vector<std::string> files() const;

 private:
  const std::vector<qkv::app::NamedArray>& read(const std::string& file);

  std::map<std::string, std::vector<qkv::app::NamedArray>> files_;
};

// The file of a FILE[:NAME], as messages name it.
std::string file_of(const std::string& spec);

#endif  // QKV_COMMANDS_SHELL_ARRAY_STORE_H_
