// SPDX-License-Identifier: Apache-2.0
#include <qkv/error.h>

#include "core/one_line.h"

namespace qkv {
namespace {

// Returns "function: argument detail" on one line, whatever characters the arguments hold. An empty
// argument (an error about the whole call) is omitted.
std::string sentence(std::string_view function, std::string_view argument,
                     std::string_view detail) {
  std::string text(function);
  text += ": ";
  text += argument;
  if (!argument.empty() && !detail.empty()) text += ' ';
  text += detail;
  return core::on_one_line(text);
}

}  // namespace

Error::Error(std::string_view function, std::string_view argument, std::string_view detail,
             ErrorKind kind)
    : std::runtime_error(sentence(function, argument, detail)),
      function_(function),
      argument_(argument),
      kind_(kind) {}

// The destructor is out of line, so that the type's identity is in the library and crosses
// shared-library boundaries.
Error::~Error() = default;

Cancelled::Cancelled(std::string_view function)
    : std::runtime_error(sentence(function, "", "cancelled by the context's stop flag")) {}

Cancelled::~Cancelled() = default;

}  // namespace qkv
