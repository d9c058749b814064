// SPDX-License-Identifier: Apache-2.0
#include "text/special_tokens.h"

#include <algorithm>

namespace qkv::app {
namespace {

// All special tokens, in lower case; the first kPaddings are padding.
constexpr std::string_view kSpecial[] = {"[pad]",
                                         "<pad>",
                                         "<|pad|>",
                                         "[cls]",
                                         "[sep]",
                                         "[bos]",
                                         "[eos]",
                                         "<cls>",
                                         "<sep>",
                                         "<s>",
                                         "</s>",
                                         "<bos>",
                                         "<eos>",
                                         "<sos>",
                                         "<|startoftext|>",
                                         "<|endoftext|>",
                                         "<|begin_of_text|>",
                                         "<|end_of_text|>",
                                         "<|eot_id|>",
                                         "<|im_start|>",
                                         "<|im_end|>",
                                         "<start_of_turn>",
                                         "<end_of_turn>"};
constexpr std::size_t kPaddings = 3;

// Converts ASCII letters only, since the list has no others.
constexpr char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool stands_in(std::span<const std::string_view> list, std::string_view token) {
  return std::any_of(list.begin(), list.end(), [token](std::string_view special) {
    return std::equal(special.begin(), special.end(), token.begin(), token.end(),
                      [](char a, char b) { return a == lower(b); });
  });
}

}  // namespace

std::span<const std::string_view> special_tokens() { return kSpecial; }

bool is_special(std::string_view token) { return token.empty() || stands_in(kSpecial, token); }

bool is_same_special(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool is_padding(std::string_view token) {
  return token.empty() || stands_in(std::span(kSpecial).first<kPaddings>(), token);
}

}  // namespace qkv::app
