// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_APP_FILES_H_
#define TESTS_APP_FILES_H_

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::test {

// A temporary directory. The destructor removes it.
class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qkv-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    path_ = pattern;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this / name;
  }
  // The names of all entries, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The message of the Exception that a call throws. If it throws another type or nothing, the result
// begins with "another exception: " or is "no exception".
template <class Exception, class Call>
std::string complaint(Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

// Tests a reader on damaged copies of a file: `read_file` (of a path) must read a copy or throw
// Error. Copies are cut at each length, or have one byte changed, each in three ways. Returns how
// many cut copies were read.
template <class Error, class Read>
std::size_t read_though_cut(const Directory& directory, const std::string& whole,
                            Read&& read_file) {
  const auto is_read = [&](const std::string& bytes) {
    try {
      read_file(directory.write("damaged", bytes));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::size_t count = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    if (is_read(whole.substr(0, length))) ++count;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xFF}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      is_read(bytes);
    }
  }
  return count;
}

}  // namespace qkv::test

#endif  // TESTS_APP_FILES_H_
