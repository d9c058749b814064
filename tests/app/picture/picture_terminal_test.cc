// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "picture/colours.h"
#include "tests/app/picture/pictures.h"
#include "text/text.h"

// Tests of pictures on terminals: maps, their colours, and tables.
namespace qkv::app {
namespace {

using test::Drawn;
using test::drawn_picture;
using test::drawn_pictures;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Removes colour codes and keeps any other escape.
std::string uncoloured(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find_first_not_of("0123456789;", at + 2);
    if (text.compare(at, 2, "\x1b[") == 0 && end != std::string::npos && text[end] == 'm') {
      at = end + 1;
    } else {
      result += text[at++];
    }
  }
  return result;
}

std::string plain(const Picture& picture, int columns = 80) {
  return draw_terminal(picture, {.columns = columns, .colours = TerminalColours::kNone});
}

Picture picture_of(const Tensor& map) {
  Picture picture;
  picture.panels = {{"", map.view(), {}}};
  return picture;
}

// ---- terminals ------------------------------------------------------------------------------

TEST(PictureTerminal, DrawsWithPlainMarks) {
  const Drawn drawn = drawn_picture("kinds");
  EXPECT_EQ(plain(drawn.picture),
            "         0 1 2 3 4\n"
            "  number ██        \n"
            "  masked ╱╱╱╱╱╱╱╱╱╱\n"
            "    zero · · · · · \n"
            "     NaN ??????????\n"
            "infinite ??????????\n"
            "    tiny           \n"
            "\n"
            "0 [ ░▒▓█] 0.954   blank: below 0.1   ·  exactly 0   ╱╱ masked   ?? not finite\n"
            "rows are queries, columns are keys\n");
  const std::string ascii =
      draw_terminal(drawn.picture, {.colours = TerminalColours::kNone, .unicode = false});
  EXPECT_NE(ascii.find("  number @@        \n  masked xxxxxxxxxx\n    zero . . . . . \n"),
            std::string::npos)
      << ascii;
}

TEST(PictureTerminal, KindsOfCellsDifferInColour) {
  const std::string text = draw_terminal(drawn_picture("kinds").picture, {});
  const std::vector<std::string> lines = lines_of(text);
  const auto cells = [&](std::size_t row) { return lines[row + 1].substr(9); };
  EXPECT_TRUE(cells(0).starts_with("\x1b[0;48;2;235;237;109m  ")) << cells(0);
  EXPECT_TRUE(cells(1).starts_with("\x1b[0;38;2;120;120;120m╱╱╱╱╱╱╱╱╱╱")) << cells(1);
  EXPECT_TRUE(cells(2).starts_with("\x1b[0;38;2;120;120;120;48;2;14;14;16m· · · · · ")) << cells(2);
  EXPECT_TRUE(cells(3).starts_with("\x1b[0;1;38;2;255;255;255;48;2;213;94;0m??????????"));
  EXPECT_TRUE(cells(5).starts_with("\x1b[0;48;2;106;73;155m          ")) << cells(5);
}

TEST(PictureTerminal, TwoHundredAndFiftySixColours) {
  const std::string text =
      draw_terminal(drawn_picture("kinds").picture, {.colours = TerminalColours::k256});
  EXPECT_EQ(text.find(";2;"), std::string::npos) << text;
  const std::vector<std::string> lines = lines_of(text);
  const auto cells = [&](std::size_t row) { return lines[row + 1].substr(9); };
  EXPECT_TRUE(cells(0).starts_with("\x1b[0;48;5;227m  ")) << cells(0);
  EXPECT_TRUE(cells(1).starts_with("\x1b[0;38;5;243m╱")) << cells(1);
  EXPECT_TRUE(cells(2).starts_with("\x1b[0;38;5;243;48;5;233m· ")) << cells(2);
  EXPECT_TRUE(cells(3).starts_with("\x1b[0;1;38;5;231;48;5;166m??")) << cells(3);
  EXPECT_TRUE(cells(5).starts_with("\x1b[0;48;5;61m  ")) << cells(5);
}

// The bar in the legend has every step that cells may have, all of the same width.
TEST(PictureTerminal, TheBarOf256ColoursHasAllSteps) {
  const std::string text =
      draw_terminal(drawn_picture("kinds").picture, {.colours = TerminalColours::k256});
  const std::vector<std::string> lines = lines_of(text);
  const auto bar = std::ranges::find_if(
      lines, [](const std::string& line) { return line.find("0.954") != line.npos; });
  ASSERT_NE(bar, lines.end());
  std::string wanted = "0 ";
  for (int step = 0; step < picture::kStepsOf256; ++step) {
    wanted += "\x1b[0;48;5;" +
              std::to_string(picture::nearest_of_256(picture::terminal_step(step))) + "m  ";
  }
  EXPECT_TRUE(bar->starts_with(wanted + "\x1b[0m 0.954")) << *bar;
}

// Next to a row that attends to one key, a row that attends equally or nearly equally to all keys
// is neither blank nor drawn as zeros. Weights below half an even share (1/20) stay blank.
TEST(PictureTerminal, EvenRowsAreVisibleWithoutColour) {
  Tensor weights(DType::kFloat64, {4, 20});
  const auto numbers = weights.values<double>();
  for (std::size_t j = 0; j < 20; ++j) {
    numbers[j] = 0.05;
    numbers[20 + j] = j % 2 == 0 ? 0.045 : 0.055;
    numbers[40 + j] = j == 3 ? 0.905 : 0.005;
    numbers[60 + j] = j == 4 ? 1 : 0;
  }
  Picture picture = picture_of(weights);
  picture.queries = {"even", "near", "sharp", "one"};
  const std::string text = plain(picture);
  const auto repeated = [](std::string_view mark, int times) {
    std::string result;
    for (int n = 0; n < times; ++n) result += mark;
    return result;
  };
  EXPECT_NE(text.find(" even " + repeated("░", 40) + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" near " + repeated("░", 40) + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sharp       ██" + repeated(" ", 32) + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  one · · · · ██" + repeated("· ", 15) + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("0 [ ░▒▓█] 1   blank: below 0.025   ·  exactly 0\n"), std::string::npos)
      << text;
  const std::string ascii =
      draw_terminal(picture, {.colours = TerminalColours::kNone, .unicode = false});
  EXPECT_NE(ascii.find(" even " + repeated(":", 40) + "\n"), std::string::npos) << ascii;
}

// Scores have no even share below which cells could stay blank.
TEST(PictureTerminal, NegativeNumbersHaveTheBarAlone) {
  Tensor scores(DType::kFloat64, {1, 3});
  std::ranges::copy(std::array{-1.0, -0.9, 3.0}, scores.values<double>().begin());
  const std::string text = plain(picture_of(scores));
  EXPECT_EQ(text.find("blank"), std::string::npos) << text;
}

// nearest_of_256() finds a colour as near as a search of all but the first 16, which users choose.
TEST(PictureColours, NearestOf256) {
  const auto squared = [](int x) { return x * x; };
  const auto away = [&](int n, const picture::Rgb& c) {
    const auto step = [](int k) { return k == 0 ? 0 : 55 + 40 * k; };
    const int grey = 8 + 10 * (n - 232);
    const int cube = n - 16;
    return n < 232 ? squared(step(cube / 36) - c.red) + squared(step(cube / 6 % 6) - c.green) +
                         squared(step(cube % 6) - c.blue)
                   : squared(grey - c.red) + squared(grey - c.green) + squared(grey - c.blue);
  };
  for (int n = 0; n < 4096; ++n) {
    const auto part = [&](int shift) { return static_cast<std::uint8_t>((n >> shift & 15) * 17); };
    const picture::Rgb colour{part(8), part(4), part(0)};
    int nearest = 16;
    for (int other = 17; other < 256; ++other) {
      if (away(other, colour) < away(nearest, colour)) nearest = other;
    }
    const int got = picture::nearest_of_256(colour);
    ASSERT_TRUE(got >= 16 && got < 256) << picture::hex(colour);
    ASSERT_EQ(away(got, colour), away(nearest, colour)) << picture::hex(colour) << " " << got;
  }
}

std::array<double, 3> linear(const picture::Rgb& colour) {
  const auto part = [](double c) {
    return c / 255 <= 0.04045 ? c / 255 / 12.92 : std::pow((c / 255 + 0.055) / 1.055, 2.4);
  };
  return {part(colour.red), part(colour.green), part(colour.blue)};
}

double luminance(const picture::Rgb& colour) {
  const auto [r, g, b] = linear(colour);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// The CIE 1976 coordinates L*, a*, b* of a colour under D65.
std::array<double, 3> lab(const picture::Rgb& colour) {
  const auto [r, g, b] = linear(colour);
  const auto f = [](double t) {
    return t > 216.0 / 24389 ? std::cbrt(t) : (24389.0 / 27 * t + 16) / 116;
  };
  const double x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
  const double y = f(luminance(colour));
  const double z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

// With 256 colours, all steps of the bar are different, each is exactly one of xterm's colours, and
// each is lighter than the step below it and clearly different from that step.
TEST(PictureColours, StepsOf256CanBeToldApart) {
  std::set<int> entries;
  for (int step = 0; step < picture::kStepsOf256; ++step) {
    SCOPED_TRACE(step);
    const picture::Rgb colour = picture::terminal_step(step);
    const int entry = picture::nearest_of_256(colour);
    const auto part = [&](int size) {
      const int n = (entry - 16) / size % 6;
      return static_cast<std::uint8_t>(n == 0 ? 0 : 55 + 40 * n);
    };
    EXPECT_EQ(colour, (picture::Rgb{part(36), part(6), part(1)})) << entry;
    entries.insert(entry);
    EXPECT_GE((luminance(colour) + 0.05) / 0.05, 2.95);
    EXPECT_LE(std::min({colour.red, colour.green, colour.blue}), 192);
    if (step == 0) continue;
    const auto [light, a, b] = lab(colour);
    const auto [light_below, a_below, b_below] = lab(picture::terminal_step(step - 1));
    EXPECT_GE(light, light_below + 2.5);
    EXPECT_GE(std::hypot(light - light_below, a - a_below, b - b_below), 15);
  }
  EXPECT_EQ(std::ssize(entries), picture::kStepsOf256);
}

// Every weight has a contrast (WCAG 2.1) of 2.95 or more with black and of 2.5 or more with the
// colour of zeros, and no colour is close to white.
TEST(PictureColours, TerminalsShowEveryWeightOnBlackAndOnWhite) {
  double before = 0;
  for (int level = 0; level < picture::kLevels; ++level) {
    const picture::Rgb colour = picture::terminal_colour(level);
    const double light = luminance(colour);
    EXPECT_GE((light + 0.05) / 0.05, 2.95) << level;
    EXPECT_GE((light + 0.05) / (luminance(picture::kTerminalZero) + 0.05), 2.5) << level;
    EXPECT_LE(std::min({colour.red, colour.green, colour.blue}), 192) << level;
    EXPECT_GE(light, before) << level;
    before = light;
  }
}

// With any labels no line is too long, the only escapes are colours, and ASCII output is ASCII.
TEST(PictureTerminal, LinesFitAndAreSafe) {
  for (const Drawn& drawn : drawn_pictures()) {
    for (const int columns : {20, 41, 80, 300}) {
      for (const auto colours :
           {TerminalColours::kNone, TerminalColours::k256, TerminalColours::k24Bit}) {
        for (const bool unicode : {false, true}) {
          SCOPED_TRACE(testing::Message() << drawn.name << " " << columns << " "
                                          << static_cast<int>(colours) << unicode);
          const std::string text = draw_terminal(
              drawn.picture, {.columns = columns, .colours = colours, .unicode = unicode});
          const bool coloured = colours != TerminalColours::kNone;
          EXPECT_EQ(coloured, text.find('\x1b') != text.npos);
          const std::string shown = coloured ? uncoloured(text) : text;
          for (const std::string& line : lines_of(shown)) {
            ASSERT_LE(display_width(line), columns) << line;
            ASSERT_TRUE(std::none_of(line.begin(), line.end(), [&](char c) {
              const auto byte = static_cast<unsigned char>(c);
              return byte < 0x20 || byte == 0x7F || (!unicode && byte > 0x7F);
            })) << line;
          }
        }
      }
    }
  }
}

TEST(PictureTerminal, MapsStandStraightBesideLabelsOfAllScripts) {
  const std::vector<std::string> lines = lines_of(plain(drawn_picture("hard").picture));
  const std::size_t first = static_cast<std::size_t>(
      std::find_if(lines.begin(), lines.end(),
                   [](const std::string& line) {
                     return line.find("Donaudampf") != line.npos && line.find("…") != line.npos;
                   }) -
      lines.begin());
  ASSERT_LT(first + 12, lines.size());
  for (std::size_t row = first; row < first + 12; ++row) {
    EXPECT_EQ(display_width(lines[row]), display_width(lines[first])) << lines[row];
  }
  // Arabic and Hebrew do not reorder their line.
  EXPECT_NE(lines[first + 1].find("\u2068مرحبا\u2069 ╱╱"), std::string::npos) << lines[first + 1];
  EXPECT_EQ(lines[first].find("\u2068"), std::string::npos);
}

TEST(PictureTerminal, WideMapsAreCutIntoBands) {
  const std::string text = plain(drawn_picture("row").picture, 40);
  EXPECT_NE(text.find("keys 0 to 16 of 50\n"), std::string::npos) << text;
  EXPECT_NE(text.find("keys 34 to 49 of 50\n"), std::string::npos) << text;
}

TEST(PictureTerminal, TallMapsHaveTwoQueriesOnALine) {
  const std::string text = draw_terminal(drawn_picture("sixty").picture, {.columns = 100});
  EXPECT_NE(text.find("▀"), std::string::npos);
  const auto lines = lines_of(uncoloured(text));
  // Sixty queries make 30 lines of cells.
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) { return line.find("▀") != line.npos; }),
            30);
}

// ---- tables ---------------------------------------------------------------------------------

TEST(PictureTable, AlignsNumbersAndLabels) {
  EXPECT_EQ(draw_table(drawn_picture("kinds").picture),
            "               0       1       2       3       4\n"
            "number    0.9542  0.0375  0.0026  0.0027  0.0031\n"
            "masked         -       -       -       -       -\n"
            "zero           0       0       0       0       0\n"
            "NaN          nan     nan     nan     nan     nan\n"
            "infinite     inf     inf     inf     inf     inf\n"
            "tiny      0.0000  0.0000  0.0000  0.0000  0.0000\n"
            "\n"
            "rows are queries, columns are keys; - is masked\n");
  const auto lines = lines_of(draw_table(drawn_picture("hard").picture));
  for (std::size_t row = 3; row < 15; ++row) {
    EXPECT_EQ(display_width(lines[row]), display_width(lines[2])) << lines[row];
  }
}

// Tables fit a terminal of 20 or more columns with any labels, and no number is lost.
TEST(PictureTable, FitsATerminal) {
  const auto numbers = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '.');
  };
  for (const Drawn& drawn : drawn_pictures()) {
    for (const int columns : {1, 20, 41, 80, 300}) {
      SCOPED_TRACE(testing::Message() << drawn.name << " " << columns);
      for (const std::string& line : lines_of(draw_table(drawn.picture, columns))) {
        ASSERT_LE(display_width(line), std::max(columns, 20)) << line;
      }
    }
  }
  const Drawn drawn = drawn_picture("kinds");  // owns what its picture shows
  const Picture& kinds = drawn.picture;
  EXPECT_EQ(draw_table(kinds, 300), draw_table(kinds));
  EXPECT_EQ(numbers(draw_table(kinds, 20)), numbers(draw_table(kinds)));
  EXPECT_THROW(draw_table(kinds, -1), Error);
}

TEST(PictureTable, ColumnsThatDoNotFitFollowBelow) {
  EXPECT_EQ(draw_table(drawn_picture("kinds").picture, 33),
            "               0       1       2\n"
            "number    0.9542  0.0375  0.0026\n"
            "masked         -       -       -\n"
            "zero           0       0       0\n"
            "NaN          nan     nan     nan\n"
            "infinite     inf     inf     inf\n"
            "tiny      0.0000  0.0000  0.0000\n"
            "\n"
            "               3       4\n"
            "number    0.0027  0.0031\n"
            "masked         -       -\n"
            "zero           0       0\n"
            "NaN          nan     nan\n"
            "infinite     inf     inf\n"
            "tiny      0.0000  0.0000\n"
            "\n"
            "rows are queries, columns are\n"
            "keys; - is masked\n");
}

TEST(PictureTable, HasATableForEachPanel) {
  const std::string text = draw_table(drawn_picture("heads").picture);
  for (int head = 0; head < 8; ++head) {
    EXPECT_NE(text.find("\nhead " + std::to_string(head) + "\n"), std::string::npos);
  }
  EXPECT_TRUE(text.starts_with("Eight heads of layer 3\n\nhead 0\n"));
}

}  // namespace
}  // namespace qkv::app
