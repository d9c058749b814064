// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

namespace qkv::app {

InputError::InputError(std::string_view file, std::string_view detail)
    : InputError(file, "", detail) {}

InputError::InputError(std::string_view file, std::string_view place, std::string_view detail)
    : std::runtime_error(on_one_line(fmt::format("{}:{} {}", file, place, detail))), file_(file) {}

InputError::~InputError() = default;

InputError InputError::at_line(std::string_view file, Index line, std::string_view detail) {
  InputError error(file, fmt::format("{}:", line), detail);
  error.line_ = line;
  return error;
}

InputError InputError::at_byte(std::string_view file, Index byte, std::string_view detail) {
  InputError error(file, fmt::format(" byte {}:", byte), detail);
  error.byte_ = byte;
  return error;
}

OutputError::OutputError(std::string_view file, std::string_view reason)
    : std::runtime_error(on_one_line(fmt::format("{}: cannot be written: {}", file, reason))),
      file_(file) {}

OutputError::~OutputError() = default;

OutputError OutputError::closed_pipe(std::string_view file) {
  OutputError error(file, "its reader has closed it");
  error.closed_pipe_ = true;
  return error;
}

}  // namespace qkv::app
