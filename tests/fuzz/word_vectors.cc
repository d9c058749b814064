// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/word_vectors.h>

#include "tests/fuzz/memory_file.h"

namespace {

// Returns whether check_word_vectors(), which reads the whole file, accepts it.
bool is_good(const std::string& path) {
  try {
    qkv::app::check_word_vectors(path);
    return true;
  } catch (const qkv::app::InputError&) {
    return false;
  }
}

}  // namespace

// The lookup must accept every file that the check accepts; it may accept more, since it reads
// less.
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
