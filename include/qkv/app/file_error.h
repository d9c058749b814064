// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_FILE_ERROR_H_
#define QKV_APP_FILE_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// The error of a file that is missing, unreadable or malformed. what() reads "FILE: detail",
// "FILE:LINE: expected X, got Y" for text, "FILE: byte N: expected X, got Y" for binary files.
class QKV_API InputError : public std::runtime_error {
 public:
  InputError(std::string_view file, std::string_view detail);
  ~InputError() override;
  static InputError at_line(std::string_view file, Index line, std::string_view detail);
  static InputError at_byte(std::string_view file, Index byte, std::string_view detail);

  const std::string& file() const noexcept { return file_; }
  Index line() const noexcept { return line_; }  // from 1; 0 if the error has no line
  Index byte() const noexcept { return byte_; }  // from 0; -1 if the error has no byte

 private:
  InputError(std::string_view file, std::string_view place, std::string_view detail);

  std::string file_;
  Index line_ = 0;
  Index byte_ = -1;
};

// The error of a file that cannot be written: "FILE: cannot be written: reason". No partial file is
// left behind.
class QKV_API OutputError : public std::runtime_error {
 public:
  OutputError(std::string_view file, std::string_view reason);
  ~OutputError() override;
  // The error of an output whose reader has closed it; programs do not report it as a failure.
  static OutputError closed_pipe(std::string_view file);

  const std::string& file() const noexcept { return file_; }
  bool is_closed_pipe() const noexcept { return closed_pipe_; }

 private:
  std::string file_;
  bool closed_pipe_ = false;
};

}  // namespace qkv::app

#endif  // QKV_APP_FILE_ERROR_H_
