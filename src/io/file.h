// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_FILE_H_
#define QKV_IO_FILE_H_

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include <qkv/view.h>

#include "io/descriptor.h"

// Files of the operating system: the only code of this room that opens one.
namespace qkv::io {

// The text of an errno value.
std::string system_message(int error);

// A file read from its start, "-" being standard input. Throws InputError. The flag (which may be
// null) is read with each block; when true read() throws Cancelled.
class InputFile {
 public:
  explicit InputFile(const std::string& path, const std::atomic<bool>* stop = nullptr);

  // As messages name it.
  const std::string& name() const noexcept { return name_; }
  // Of a regular file; a pipe or a terminal has none.
  std::optional<Index> size() const noexcept { return size_; }
  // The next bytes, fewer only at the end, good until the next call; read() gives them again.
  std::string_view peek(std::size_t bytes);
  // The operating system's file once more, for a library that wants to read it by itself and
  // closes it then. Throws InputError.
  int duplicate() const;
  // Reads until `bytes` are there or the file ends; returns how many there are.
  std::size_t read(void* target, std::size_t bytes);
  // The same, but does not wait for more than there is: 0 bytes are the end. Of a regular file
  // there is all.
  std::size_t read_some(void* target, std::size_t bytes);
  // All that is left.
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
  std::size_t given_ = 0;  // bytes of it that read() has given
};

// A file that appears whole or not at all: what is written goes to temporary_path(), a new file
// beside the target, which takes the target's place at commit() and is removed otherwise.
// A target that is a symbolic link is followed; anything else but a regular file is refused. The
// permissions of a file that was there stay; the mask of the process decides those of a new one.
// "-" is standard output: all bytes are copied to it at commit(). Throws OutputError.
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

}  // namespace qkv::io

#endif  // QKV_IO_FILE_H_
