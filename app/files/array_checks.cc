// SPDX-License-Identifier: Apache-2.0
// Checks common to all array formats. They are kept apart from the list of formats so that a
// program that uses one format does not link the libraries of the others.
#include <set>
#include <string>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/array_formats.h"

namespace qkv::files {

void check_names(std::string_view function, std::span<const app::NamedView> arrays) {
  if (arrays.empty()) throw Error(function, "arrays", "must not be empty");
  std::set<std::string_view> names;
  for (const app::NamedView& array : arrays) {
    if (array.name.empty() || !app::from_utf8(array.name) ||
        array.name.find('\0') != std::string::npos || !names.insert(array.name).second) {
      throw Error(function, "arrays",
                  fmt::format("must have distinct UTF-8 names, got {}", app::quoted(array.name)));
    }
  }
}

void check_head(InputFile& file, bool (*claims)(std::string_view head), std::string_view format) {
  const std::string_view head = file.peek(kArrayFileHead);
  if (claims(head)) return;
  throw app::InputError::at_byte(
      file.name(), 0, fmt::format("expected {}, got {}", format, app::quoted(head.substr(0, 8))));
}

}  // namespace qkv::files
