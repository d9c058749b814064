// SPDX-License-Identifier: Apache-2.0
// Tests of settings as JSON: they are read back as written, and errors name the invalid member.
#include "files/settings.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Settings some_settings() {
  return {{"lower", true},       {"hidden", Index{64}},
          {"offset", Index{-3}}, {"seed", std::numeric_limits<std::uint64_t>::max()},
          {"rate", 0.002},       {"decay", 0.0},
          {"tiny", 5e-324},      {"data", std::string("a \"b\"\n\u00e4\u2192.tsv")}};
}

TEST(Settings, AreWrittenOnePerLine) {
  EXPECT_EQ(settings_text(some_settings()), R"({
  "lower": true,
  "hidden": 64,
  "offset": -3,
  "seed": 18446744073709551615,
  "rate": 0.002,
  "decay": 0.0,
  "tiny": 5e-324,
  "data": "a \"b\"\nä→.tsv"
}
)");
  EXPECT_EQ(settings_line({{"epoch", Index{3}}, {"loss", 1.5}}), "{\"epoch\": 3, \"loss\": 1.5}\n");
  EXPECT_EQ(settings_line({}), "{}\n");
}

TEST(Settings, AreReadAsWritten) {
  const Directory directory;
  const Settings want = some_settings();
  const Settings got = read_settings(directory.write("s.json", settings_text(want)));
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < got.size(); ++n) {
    EXPECT_EQ(got[n].name, want[n].name);
    EXPECT_EQ(got[n].value, want[n].value) << want[n].name;
  }
  EXPECT_EQ(read_settings(directory.write("line.json", settings_line(want))).size(), want.size());
  EXPECT_TRUE(read_settings(directory.write("none.json", "{}")).empty());
}

TEST(Settings, WhatJsonCannotHoldIsReplaced) {
  EXPECT_EQ(json_text(std::nan("")), "\"NaN\"");
  EXPECT_EQ(json_text(kInfinity), "\"Infinity\"");
  EXPECT_EQ(json_text(-kInfinity), "\"-Infinity\"");
  EXPECT_EQ(json_text(std::string("a\xff")), "\"a\ufffd\"");
}

TEST(Settings, AreFoundByName) {
  const Settings settings = some_settings();
  ASSERT_NE(find_setting(settings, "rate"), nullptr);
  EXPECT_EQ(std::get<double>(*find_setting(settings, "rate")), 0.002);
  EXPECT_EQ(find_setting(settings, "rat"), nullptr);
}

TEST(Settings, FilesThatAreNoSettingsAreRefused) {
  const Directory directory;
  const auto refused = [&](const char* text) {
    const std::string path = directory.write("s.json", text);
    return complaint<InputError>([&] { read_settings(path); }).substr(path.size());
  };
  const std::string start = ": expected a JSON object of settings, ";
  EXPECT_EQ(refused("[1]"), start + "got a list");
  EXPECT_EQ(refused("12"), start + "got a value alone");
  EXPECT_EQ(refused("null"), start + "got null");
  const std::string member = ": member \"a\": expected text, a number or true or false, ";
  EXPECT_EQ(refused(R"({"a": [1]})"), member + "got a list");
  EXPECT_EQ(refused(R"({"a": {"b": 1}})"), member + "got an object");
  EXPECT_EQ(refused(R"({"a": null})"), member + "got null");
  EXPECT_EQ(refused("{\"a\": 1,\n\"a\": 2}"), ":2: expected distinct names, got \"a\" twice");
  EXPECT_EQ(refused(R"({"a": 1)"),
            ":1: the file is truncated: expected JSON, got the end after 7 bytes");
  EXPECT_EQ(refused(""), ":1: expected JSON, got the end");
  EXPECT_EQ(refused(R"({"a": 1e999})"), ":1: expected JSON, got a number out of range");
  EXPECT_EQ(complaint<InputError>([&] { read_settings(directory / "none"); }),
            directory / "none" + ": No such file or directory");
}

TEST(Settings, FilesAreBounded) {
  const Directory directory;
  const auto refused = [&](const std::string& text) {
    const std::string path = directory.write("s.json", text);
    return complaint<InputError>([&] { read_settings(path); }).substr(path.size());
  };
  const std::string start = ":1: expected a JSON object of settings, got ";
  EXPECT_EQ(refused(std::string(100000, '[')), start + "deeper JSON");
  EXPECT_EQ(refused(R"({"a": {"b": {}}})"), start + "deeper JSON");
  std::string many = "{\"0\": 0";
  for (int n = 1; n < 10000; ++n) many += ", \"" + std::to_string(n) + "\": 0";
  EXPECT_EQ(refused(many + "}"), start + "more than 10000 values");
  EXPECT_EQ(complaint<InputError>([] { read_settings("/dev/zero"); }),
            "/dev/zero" + start + "more than 1048576 bytes");
}

TEST(Settings, DamagedFilesAreReadOrRefused) {
  const Directory directory;
  const std::size_t read_count = test::read_though_cut<InputError>(
      directory, settings_text({{"a", Index{1}}, {"b", std::string("x")}}),
      [](const std::string& path) { read_settings(path); });
  EXPECT_EQ(read_count, 1U);  // the copy without the last newline
}

}  // namespace
}  // namespace qkv::app
