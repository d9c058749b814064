// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include <qkv/app/subwords.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "tests/fuzz/memory_file.h"

using qkv::fuzz::require;

// A model that is accepted splits text and joins it again; each of its pieces alone joins to UTF-8.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const qkv::app::Subwords subwords(bytes);
    // A vocabulary has 4 special tokens, 256 bytes and learned pieces.
    require(subwords.bytes() == bytes && subwords.vocabulary().size() > 260);
    for (const char* text : {"cab", "the cat \xE4\xB8\xAD", "<s> aaaaaaaaaaaaaaaaaaaa"}) {
      require(subwords.join(subwords.split(text)) == text);
    }
    const auto vocabulary = subwords.vocabulary();
    for (const auto& token : vocabulary.tokens()) {
      require(qkv::app::from_utf8(subwords.join({&token.text, 1})).has_value());
    }
  } catch (const qkv::Error&) {
  }
  return 0;
}
