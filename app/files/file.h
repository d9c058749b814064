// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_FILE_H_
#define QKV_FILES_FILE_H_

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include <qkv/view.h>

#include "files/descriptor.h"

// Files of the operating system. The readers and writers in this folder open their files
// with these classes.
namespace qkv::files {

// The start of messages about a file that ends too early; the text after it says what was expected
// and what came.
inline constexpr std::string_view kTruncated = "the file is truncated: ";

// The system's message for an errno value.
std::string system_message(int error);

// A file that is read sequentially; the path "-" is standard input. Throws InputError. The flag
// `stop` (which may be null) is polled before each system read and while a pipe has no data; if it
// is true, Cancelled is thrown.
class InputFile {
 public:
  explicit InputFile(const std::string& path, const std::atomic<bool>* stop = nullptr);

  // The name in messages: the path, or "<stdin>".
  const std::string& name() const noexcept { return name_; }
  // The size of a regular file; none for a pipe, a terminal or partly read standard input.
  std::optional<Index> size() const noexcept { return size_; }
  // Returns the next `bytes` bytes, fewer only at the end of the file, without consuming them. They
  // are valid until the next call.
  std::string_view peek(std::size_t bytes);
  // A duplicate of the file descriptor for a library that reads and closes it itself. Throws
  // InputError.
  int duplicate() const;
  // Reads `bytes` bytes, fewer only at the end of the file; returns how many it has read.
  std::size_t read(void* target, std::size_t bytes);
  // Reads up to `bytes` bytes without waiting for more than are available; returns how many, 0 at
  // the end. A regular file is always available in full.
  std::size_t read_some(void* target, std::size_t bytes);
  // Reads everything up to the end of the file.
  std::string read_rest();
  // Throws Cancelled if the flag is set; to be called while a library reads a duplicate().
  void check_stop() const;

 private:
  enum class Wait { kForAll, kForAny };

  std::size_t take_ahead(void* target, std::size_t bytes);
  std::size_t read_on(char* target, std::size_t bytes, Wait wait);

  std::string name_;
  Descriptor file_;
  const std::atomic<bool>* stop_;
  bool may_wait_ = false;  // a read may wait for data, during which the flag is polled
  std::optional<Index> size_;
  std::string ahead_;      // the bytes that peek() has read
  std::size_t given_ = 0;  // bytes of ahead_ that read() has returned
};

// A file that is written atomically: output goes to temporary_path(), a new file next to the
// target, which commit() renames to the target. Without commit(), the destructor removes it. A
// target that is a symbolic link is followed; anything else that is not a regular file is rejected.
// An existing file keeps its permissions; a new one gets those that the umask leaves. The path "-"
// is standard output, to which commit() copies all bytes. Throws OutputError.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& name() const noexcept { return name_; }
  const std::string& temporary_path() const noexcept { return temporary_; }
  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  void create(const std::string& target);
  void create_for_stdout();
  void copy_to_stdout(const Descriptor& written);

  std::string name_;
  std::string target_;  // "" for standard output
  std::string temporary_;
  std::optional<mode_t> old_mode_;  // permissions of an existing target
  Descriptor file_;
};

}  // namespace qkv::files

#endif  // QKV_FILES_FILE_H_
