// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_ARRAY_STORE_H_
#define QKV_COMMANDS_SHELL_ARRAY_STORE_H_

#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/view.h>

// The value's name in the help of options whose text is passed to ArrayStore::get().
inline constexpr const char* kArrayType = "FILE[:NAME]";

// A parsed FILE[:NAME].
struct ArraySpec {
  std::string file{};
  std::string name{};  // the array's name; "" if none was given
};

// Splits FILE[:NAME] at the last colon. A colon may be part of a file name: the whole string is the
// file if it exists, or if the part before the colon is neither an existing file nor "-".
ArraySpec split_spec(const std::string& spec);

// The array files that one command line names. Each file is read once, on first use, and its arrays
// stay in memory as long as the store.
class ArrayStore {
 public:
  // A view of the numbers that `spec` selects: FILE, or FILE:NAME for one of several arrays ("-" is
  // standard input). Without a name, this is the array called `role`, or the file's only array.
  // `is_input`: the role is q, k or v. Throws UsageError if such a role and another are to share an
  // .npy file of standard input, InputError for an array that is missing or does not hold numbers.
  qkv::ConstView get(const std::string& spec, std::string_view role, bool is_input = false);
  // Whether a file has an array of this name, numbers or text.
  bool has(const std::string& file, std::string_view name);
  // The array of this name in a file; empty if there is none or it holds text. Throws InputError if
  // the array has a type that cannot be read.
  std::optional<qkv::ConstView> find(const std::string& file, std::string_view name);
  // The text array of this name in the first file read so far that has one, or null.
  const qkv::app::Strings* find_text(std::string_view name) const;
  // The names of the files read so far; "-" is standard input.
  std::vector<std::string> files() const;

 private:
  const std::vector<qkv::app::NamedArray>& read(const std::string& file);

  struct File {
    std::string name;
    std::vector<qkv::app::NamedArray> arrays;
  };
  std::string stdin_role_;  // the first role that took the .npy file of standard input, or ""
  bool stdin_is_input_ = false;
  std::list<File> files_;  // in the order of reading; views point into their arrays
};

// The name that messages show for the file of a FILE[:NAME]: "<stdin>" for "-".
std::string shown_file(const std::string& spec);

#endif  // QKV_COMMANDS_SHELL_ARRAY_STORE_H_
