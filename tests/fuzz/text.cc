// SPDX-License-Identifier: Apache-2.0
#include "text/text.h"

#include <algorithm>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "tests/fuzz/memory_file.h"

using namespace qkv::app;
using qkv::fuzz::require;

// quoted() accepts any bytes, the other functions all UTF-8. tokenize() rejects other bytes.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto code_points = from_utf8(text);
  require(from_utf8(quoted(text)).has_value());
  if (!code_points) {
    try {
      tokenize(text);
    } catch (const qkv::Error&) {
      return 0;
    }
    require(false);
  }
  require(to_utf8(*code_points) == text);
  std::size_t letters = 0;
  for (const std::string& token : tokenize(text)) {
    require(!token.empty() && from_utf8(token).has_value());
    letters += token.size();
  }
  require(letters <= size);
  require(from_utf8(lower_case(text)).has_value());
  const int width = display_width(text);
  require(width >= 0);
  for (const int limit : {0, 1, 7}) {
    require(display_width(shortened(text, limit)) <= std::max(limit, 0) || width <= limit);
  }
  return 0;
}
