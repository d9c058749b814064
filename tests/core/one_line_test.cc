// SPDX-License-Identifier: Apache-2.0
#include "core/one_line.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <qkv/error.h>

namespace qkv::test {
namespace {

using core::on_one_line;

TEST(OneLine, KeepsVisibleCharacters) {
  for (const char* text : {"", "a b.npz", "caf\u00E9", "中文", "👩\u200D👧", "C:\\x1b"}) {
    EXPECT_EQ(on_one_line(text), text);
  }
}

TEST(OneLine, WritesInvisibleCharactersAndInvalidUtf8AsNumbers) {
  const std::pair<std::string, const char*> names[] = {
      {"a\x1b[31mb\n\t", R"(a\x1b[31mb\x0a\x09)"},
      {std::string("\0\x7F", 2), R"(\x00\x7f)"},
      {"\u0080\u009B\u009F\u00A0", "\\x80\\x9b\\x9f\u00A0"},
      {"\xFF\xC3", R"(\xff\xc3)"},
      {"\xE2\x82(", R"(\xe2\x82()"},
      {"\xC0\x80\xE0\x80\x80", R"(\xc0\x80\xe0\x80\x80)"},                  // overlong
      {"\xED\xA0\x80\xF4\x90\x80\x80", R"(\xed\xa0\x80\xf4\x90\x80\x80)"},  // surrogate; too large
      {"\u202Ea\u00AD\uFEFF", R"(\u202ea\xad\ufeff)"},
      {"\u200B\u2028\u2029\u2060", R"(\u200b\u2028\u2029\u2060)"},
  };
  for (const auto& [name, shown] : names) {
    EXPECT_EQ(on_one_line(name), shown);
    EXPECT_EQ(on_one_line(shown), shown) << "nothing is escaped twice";
  }
}

TEST(OneLine, IsCutOffAfterAGivenNumberOfCharacters) {
  EXPECT_EQ(on_one_line("中文\n", 2), "中文...");
  EXPECT_EQ(on_one_line("中文\n", 3), "中文\\x0a");
}

TEST(Error, IsOneLineWhateverItNames) {
  const Error error("attention", "context", "forces the path \"\x1b[2J\n\xFF\"");
  EXPECT_STREQ(error.what(), R"(attention: context forces the path "\x1b[2J\x0a\xff")");
}

}  // namespace
}  // namespace qkv::test
