// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>
#include <qkv/app/vocabulary.h>

#include "tests/fuzz/memory_file.h"

using qkv::app::Vocabulary;
using qkv::fuzz::require;

// A vocabulary that is accepted numbers its tokens and finds each of them again.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Vocabulary vocabulary;
  try {
    vocabulary = qkv::app::read_vocabulary(qkv::fuzz::memory_file(data, size));
  } catch (const qkv::app::InputError&) {
    return 0;
  }
  std::int32_t id = Vocabulary::kSpecials;
  for (const qkv::app::CountedToken& token : vocabulary.tokens()) {
    require(token.count > 0 && qkv::app::from_utf8(token.text).has_value());
    require(vocabulary.token(id) == token.text);
    require(vocabulary.encode(std::span(&token.text, 1)) ==
            std::vector<std::int32_t>{id, Vocabulary::kEnd});
    ++id;
  }
  require(id == vocabulary.size());
  return 0;
}
