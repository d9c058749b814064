// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

constexpr auto kMostTokens =
    static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() - Vocabulary::kSpecials);

const std::array<std::string, Vocabulary::kSpecials>& special_spellings() {
  static const std::array<std::string, Vocabulary::kSpecials> spellings = {"<pad>", "<s>", "</s>",
                                                                           "<unk>"};
  return spellings;
}

bool comes_before(const CountedToken& a, const CountedToken& b) {
  return a.count != b.count ? a.count > b.count : a.text < b.text;
}

[[noreturn]] void refuse(std::string_view detail) { throw Error("Vocabulary", "tokens", detail); }

void check_text(const std::string& text) {
  if (text.empty()) refuse("must not be empty");
  if (!from_utf8(text)) refuse(fmt::format("must be UTF-8, got {}", quoted(text)));
}

void check_count(const CountedToken& token) {
  if (token.count < 1) {
    refuse(fmt::format("must have counts from 1, got {} of {}", token.count, quoted(token.text)));
  }
}

void check_order(const CountedToken& before, const CountedToken& token) {
  if (comes_before(before, token)) return;
  refuse(
      fmt::format("must be sorted by descending count, then by bytes: got {} ({}) before {} ({})",
                  quoted(before.text), before.count, quoted(token.text), token.count));
}

}  // namespace

Vocabulary::Vocabulary(std::vector<CountedToken> tokens) : tokens_(std::move(tokens)) {
  number();
  for (std::size_t n = 0; n < tokens_.size(); ++n) {
    check_count(tokens_[n]);
    if (n > 0) check_order(tokens_[n - 1], tokens_[n]);
  }
}

Vocabulary Vocabulary::uncounted(std::vector<std::string> tokens) {
  Vocabulary vocabulary;
  vocabulary.tokens_.reserve(tokens.size());
  for (std::string& text : tokens) vocabulary.tokens_.push_back({std::move(text), 0});
  vocabulary.number();
  return vocabulary;
}

void Vocabulary::number() {
  if (tokens_.size() > kMostTokens) {
    refuse(fmt::format("must be at most {}, got {}", kMostTokens, tokens_.size()));
  }
  ids_.reserve(tokens_.size());
  for (std::size_t n = 0; n < tokens_.size(); ++n) {
    const std::string& text = tokens_[n].text;
    check_text(text);
    if (!ids_.emplace(text, kSpecials + static_cast<std::int32_t>(n)).second) {
      refuse(fmt::format("must differ, got {} twice", quoted(text)));
    }
  }
}

const std::string& Vocabulary::token(std::int32_t id) const {
  if (id < 0 || id >= size()) {
    throw Error("Vocabulary::token", "id",
                fmt::format("must be from 0 to {}, got {}", size() - 1, id));
  }
  const auto n = static_cast<std::size_t>(id);
  return id < kSpecials ? special_spellings()[n] : tokens_[n - kSpecials].text;
}

std::vector<std::int32_t> Vocabulary::encode(std::span<const std::string> tokens) const {
  std::vector<std::int32_t> ids;
  ids.reserve(tokens.size() + 1);
  for (const std::string& token : tokens) {
    const auto found = ids_.find(token);
    ids.push_back(found == ids_.end() ? kUnknown : found->second);
  }
  ids.push_back(kEnd);
  return ids;
}

std::vector<std::string> Vocabulary::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (id == kEnd) break;
    tokens.push_back(token(id));
  }
  return tokens;
}

void VocabularyBuilder::add(std::span<const std::string> tokens) {
  for (const std::string& token : tokens) ++counts_[token];
}

Vocabulary VocabularyBuilder::build(Index min_count, Index most) const {
  const auto check_not_negative = [](std::string_view name, Index value) {
    if (value >= 0) return;
    throw Error("VocabularyBuilder::build", name,
                fmt::format("must not be negative, got {}", value));
  };
  check_not_negative("min_count", min_count);
  check_not_negative("most", most);
  std::vector<CountedToken> tokens;
  for (const auto& [text, count] : counts_) {
    if (count >= min_count) tokens.push_back({text, count});
  }
  std::ranges::sort(tokens, comes_before);
  if (most > 0 && std::ssize(tokens) > most) tokens.resize(static_cast<std::size_t>(most));
  return Vocabulary(std::move(tokens));
}

}  // namespace qkv::app
