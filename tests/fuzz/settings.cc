// SPDX-License-Identifier: Apache-2.0
#include "files/settings.h"

#include "files/text_file.h"
#include "tests/fuzz/memory_file.h"

using qkv::fuzz::memory_file;

namespace {

qkv::app::Settings read(const std::string& text) {
  return qkv::app::read_settings(
      memory_file(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

}  // namespace

// Settings that are written, as text or as one line, and read again are unchanged.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  qkv::app::Settings settings;
  try {
    settings = qkv::app::read_settings(memory_file(data, size));
  } catch (const qkv::app::InputError&) {
    return 0;
  }
  const std::string text = settings_text(settings);
  qkv::fuzz::require(settings_text(read(text)) == text);
  qkv::fuzz::require(settings_text(read(settings_line(settings))) == text);
  return 0;
}
