// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>
#include <qkv/app/text_file.h>
#include <qkv/app/utf8.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

[[noreturn]] void fail_at(const std::string& path, std::string_view text, std::size_t byte) {
  const std::size_t at = std::min(byte, text.size());
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<Index>(at), '\n');
  throw InputError::at_line(
      path, line,
      "expected JSON, got " + (at == text.size() ? "the end" : app::quoted(text.substr(at), 20)));
}

// The document, which nests no deeper than a vocabulary does.
nlohmann::json parse(const std::string& path, const std::string& text) {
  constexpr int kDeepest = 3;  // of a token's own array: the object, the list, the token
  if (const auto zero = text.find('\0'); zero != text.npos) fail_at(path, text, zero);
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepest) throw InputError(path, "expected a vocabulary, got deeper JSON");
    return true;
  };
  try {
    return nlohmann::json::parse(text, check_depth);
  } catch (const nlohmann::json::parse_error& error) {
    fail_at(path, text, error.byte > 0 ? error.byte - 1 : 0);
  } catch (const nlohmann::json::exception&) {  // a number that nothing can hold
    throw InputError(path, "expected counts, got another number");
  }
}

CountedToken token_from(const std::string& path, const nlohmann::json& json, std::size_t number) {
  const bool is_token = json.is_array() && json.size() == 2 && json[0].is_string() &&
                        json[1].is_number_unsigned() &&
                        json[1].get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
  if (!is_token) {
    throw InputError(path, fmt::format("token {}: expected [text, count], got {}", number,
                                       app::quoted(json.dump())));
  }
  return {json[0].get<std::string>(), json[1].get<Index>()};
}

}  // namespace

void write_vocabulary(const std::string& path, const Vocabulary& vocabulary) {
  std::string text = "{\"tokens\": [";
  std::string_view separator = "\n";
  for (const CountedToken& token : vocabulary.tokens()) {
    text += fmt::format("{}[{}, {}]", separator, nlohmann::json(token.text).dump(), token.count);
    separator = ",\n";
  }
  write_text(path, text + "\n]}\n");
}

Vocabulary read_vocabulary(const std::string& path) {
  const nlohmann::json json = parse(path, read_text(path));
  if (!json.is_object() || json.size() != 1 || !json.contains("tokens") ||
      !json["tokens"].is_array()) {
    throw InputError(path, "expected a vocabulary, {\"tokens\": [...]}, got other JSON");
  }
  std::vector<CountedToken> tokens;
  for (const nlohmann::json& token : json["tokens"]) {
    tokens.push_back(token_from(path, token, tokens.size() + 1));
  }
  try {
    return Vocabulary(std::move(tokens));
  } catch (const Error& error) {
    throw InputError(path, error.what());
  }
}

}  // namespace qkv::app
