// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "files/json_tree.h"
#include "files/text_file.h"

namespace qkv::app {
namespace {

constexpr files::JsonBounds kMost{
    .what = "a vocabulary", .depth = 3, .values = 1 << 24, .bytes = 1 << 28};

CountedToken token_from(const std::string& path, const files::Json& json, std::size_t number) {
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
    text += fmt::format("{}[{}, {}]", separator, files::Json(token.text).dump(), token.count);
    separator = ",\n";
  }
  write_text(path, text + "\n]}\n");
}

Vocabulary read_vocabulary(const std::string& path) {
  const auto members = files::read_json_tree(path, kMost).members;
  if (members.size() != 1 || members[0].name != "tokens" || !members[0].value.is_array()) {
    throw InputError(path, "expected a vocabulary, {\"tokens\": [...]}, got other JSON");
  }
  std::vector<CountedToken> tokens;
  for (const files::Json& token : members[0].value) {
    tokens.push_back(token_from(path, token, tokens.size() + 1));
  }
  try {
    return Vocabulary(std::move(tokens));
  } catch (const Error& error) {
    throw InputError(path, error.what());
  }
}

}  // namespace qkv::app
