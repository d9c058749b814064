// SPDX-License-Identifier: Apache-2.0
#include "files/text_json.h"

#include "tests/fuzz/memory_file.h"

using qkv::fuzz::require;

// Text that is accepted fits its shape and is unchanged after it is written and read again.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text =
      qkv::files::text_from_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!text) return 0;
  require(qkv::element_count(text->shape) == static_cast<qkv::Index>(text->values.size()));
  const auto again = qkv::files::text_from_json(qkv::files::text_to_json(*text));
  require(again && again->shape == text->shape && again->values == text->values);
  return 0;
}
