// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <qkv/error.h>

#include "core/draws.h"
#include "translator/data/tasks.h"

namespace qkv::app {

Example reverse_example(std::uint64_t seed, Index n) {
  constexpr std::uint32_t kShortest = 3;
  constexpr std::uint32_t kLongest = 15;
  constexpr std::uint32_t kLetters = 26;
  if (n < 0) throw Error("reverse_example", "n", fmt::format("must not be negative, got {}", n));
  core::Draws draws(seed, core::DrawStream::kReverse, n);
  std::string text(kShortest + draws.below(kLongest - kShortest + 1), ' ');
  for (char& letter : text) letter = static_cast<char>('a' + draws.below(kLetters));
  return {text, {text.rbegin(), text.rend()}};
}

}  // namespace qkv::app
