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

// Operating system files: the only code in this folder that opens them.
namespace qkv::files {

// The text of an errno value.
std::string system_message(int error);

// A file read from its start; "-" is standard input. Throws InputError. The flag (which may be
// null) is checked with each block; if it is set, read() throws Cancelled.
class InputFile {
 public:
  explicit InputFile(const std::string& path, const std::atomic<bool>* stop = nullptr);

  // The name in messages.
  const std::string& name() const noexcept { return name_; }
  // The size of a regular file; a pipe or a terminal has none.
  std::optional<Index> size() const noexcept { return size_; }
  // The next bytes, fewer only at the end, valid until the next call; read() returns them again.
  std::string_view peek(std::size_t bytes);
  // A duplicate of the file descriptor, for a library that reads and closes it
  // itself. Throws InputError.
  int duplicate() const;
  // Reads until it has `bytes` or the file ends; returns how many it got.
  std::size_t read(void* target, std::size_t bytes);
  // The same, but does not wait for more than is available; 0 bytes mean the end. A regular file
  // is always available in full.
  std::size_t read_some(void* target, std::size_t bytes);
  // Everything that is left.
  std::string read_rest();

 private:
  enum class Wait { kForAll, kForAny };

  std::size_t take_ahead(void* target, std::size_t bytes);
  std::size_t read_on(char* target, std::size_t bytes, Wait wait);

  std::string name_;
  Descriptor file_;
  const std::atomic<bool>* stop_;
  std::optional<Index> size_;
  std::string ahead_;      // what peek() has read
  std::size_t given_ = 0;  // bytes of it that read() has returned
};

// An atomically written file: output goes to temporary_path(), a new file
// next to the target, which is renamed to the target by commit() and removed otherwise.
// A target that is a symbolic link is followed; anything else that is not a regular file is
// rejected. An existing file's permissions are kept; the umask decides those of a new one.
// "-" is standard output: all bytes are copied to it by commit(). Throws OutputError.
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
  std::string target_;  // "": standard output
  std::string temporary_;
  std::optional<mode_t> old_mode_;  // of the target's
  Descriptor file_;
};

}  // namespace qkv::files

#endif  // QKV_FILES_FILE_H_
