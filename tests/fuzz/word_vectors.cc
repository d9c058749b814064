// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/word_vectors.h>

#include "tests/fuzz/memory_file.h"

namespace {

// The whole file, when it is well formed.
bool is_good(const std::string& path) {
  try {
    qkv::app::check_word_vectors(path);
    return true;
  } catch (const qkv::app::InputError&) {
    return false;
  }
}

}  // namespace

// What the check takes the lookup must take too; it may take more, since it reads less.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = qkv::fuzz::memory_file(data, size);
  const bool good = is_good(path);
  const std::vector<qkv::app::Spellings> words{{"cat"}, {"a b", "the"}, {"walks"}};
  try {
    qkv::app::read_word_vectors(path, words);
  } catch (const qkv::app::InputError&) {
    qkv::fuzz::require(!good);
  }
  return 0;
}
