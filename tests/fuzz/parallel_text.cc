// SPDX-License-Identifier: Apache-2.0
#include "files/parallel_text.h"

#include <qkv/app/utf8.h>

#include "tests/fuzz/memory_file.h"

// Every field is UTF-8 without tabs, and each row has the requested number of fields.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = qkv::fuzz::memory_file(data, size);
  const auto check = [](std::span<const std::string_view> fields, qkv::Index line) {
    qkv::fuzz::require(line > 0 && fields.size() == 2);
    for (const std::string_view field : fields) {
      qkv::fuzz::require(qkv::app::from_utf8(field).has_value());
      qkv::fuzz::require(field.find('\t') == field.npos);
    }
    return true;
  };
  try {
    qkv::app::for_each_row(path, {.columns = {1, 0}, .empty_lines = qkv::app::EmptyLines::kSkipped},
                           check);
  } catch (const qkv::app::InputError&) {
  }
  return 0;
}
