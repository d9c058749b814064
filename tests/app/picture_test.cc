// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "picture/colours.h"
#include "picture/model.h"
#include "tests/app/files.h"
#include "tests/app/pictures.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Drawn;
using test::drawn_picture;
using test::drawn_pictures;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Removes colour codes. Any other escape stays.
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

Picture one_number(const Tensor& number) {
  Picture picture;
  picture.panels = {{"", number.view(), {}}};
  return picture;
}

// ---- the call -------------------------------------------------------------------------------

TEST(Picture, SaysWhatIsWrongWithIt) {
  const Tensor weights = test::likely_weights(2, 3, 1);
  const Tensor other = test::likely_weights(3, 3, 1);
  const Tensor whole(DType::kInt32, {2, 3});
  const Tensor cube(DType::kFloat32, {1, 2, 3});
  const Tensor empty(DType::kFloat32, {0, 3});
  const Tensor allowed(DType::kBool, {2, 2});
  const auto said = [](const Picture& picture) {
    return complaint<Error>([&] { draw_table(picture); });
  };
  Picture good = one_number(weights);
  EXPECT_EQ(said({}), "draw_table: panels must be at least one");
  EXPECT_EQ(said({.panels = {{}}}), "draw_table: panels[0].weights is absent");
  EXPECT_EQ(said(one_number(whole)),
            "draw_table: panels[0].weights must hold real numbers, got int32 [2,3]");
  EXPECT_EQ(said(one_number(cube)),
            "draw_table: panels[0].weights must be a matrix [Tq,Tk] of at least one cell, got "
            "float32 [1,2,3]");
  EXPECT_EQ(said(one_number(empty)),
            "draw_table: panels[0].weights must be a matrix [Tq,Tk] of at least one cell, got "
            "float32 [0,3]");
  Picture picture = good;
  picture.panels.push_back({"", other.view(), {}});
  EXPECT_EQ(said(picture),
            "draw_table: panels[1].weights must have the shape of the first panel, [2,3], got "
            "[3,3]");
  picture = good;
  picture.panels[0].allowed = allowed.view();
  EXPECT_EQ(said(picture), "draw_table: panels[0].allowed must be bool [2,3], got bool [2,2]");
  picture = good;
  picture.queries = {"a"};
  EXPECT_EQ(said(picture), "draw_table: queries must be 2 labels or none, got 1");
  picture = good;
  picture.keys = {"a", "b"};
  EXPECT_EQ(said(picture), "draw_table: keys must be 3 labels or none, got 2");
  for (const double highest : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    picture = good;
    picture.highest = highest;
    EXPECT_TRUE(said(picture).starts_with("draw_table: highest must be finite and above 0"))
        << said(picture);
  }
  picture = good;
  picture.columns = -1;
  EXPECT_EQ(said(picture), "draw_table: columns must not be negative, got -1");
  EXPECT_EQ(complaint<Error>([&] { draw_terminal(good, {.columns = 0}); }),
            "draw_terminal: style must have at least 1 column, got 0");
  EXPECT_EQ(complaint<Error>([&] { draw_png(good, 0); }),
            "draw_png: zoom must be above 0 and at most 100, got 0");
}

TEST(Picture, TooManyCellsAreToBeReduced) {
  const float one = 1;  // viewed as a matrix of any size
  Picture picture;
  picture.panels = {{"", ConstView(&one, {2001, 2000}, {0, 0}), {}}};
  EXPECT_EQ(complaint<Error>([&] { draw_svg(picture); }),
            "draw_svg: panels must have at most 4000000 cells, and 10000 queries or keys; got 1 "
            "maps of 2001 x 2000: select or reduce");
  picture.panels = {{"", ConstView(&one, {1, 10001}, {0, 0}), {}}};
  EXPECT_THROW(draw_svg(picture), Error);
  picture.panels = {{"", ConstView(&one, {2000, 2000}, {0, 0}), {}}};
  EXPECT_LT(draw_svg(picture).size(), 1'000'000U);  // equal neighbours are merged
}

TEST(Picture, TheLargestNumbersHaveABarToo) {
  for (const double largest : {std::numeric_limits<double>::max(),
                               std::numeric_limits<double>::max() * (1 - 1e-10), 1e300}) {
    const double values[] = {largest, 0, 0.25, 1};
    Picture picture;
    picture.panels = {{"", ConstView(values, {2, 2}), {}}};
    EXPECT_LT(draw_svg(picture).size(), 100'000U) << largest;
    picture.panels = {{"", ConstView(values, {1, 1}), {}}};
    EXPECT_LT(draw_svg(picture).size(), 100'000U) << largest;
  }
}

// ---- same numbers, same picture ---------------------------------------------------------------

TEST(Picture, SamePictureSameBytes) {
  for (const Drawn& drawn : drawn_pictures()) {
    SCOPED_TRACE(drawn.name);
    EXPECT_EQ(draw_svg(drawn.picture), draw_svg(drawn_picture(drawn.name).picture));
    EXPECT_EQ(draw_terminal(drawn.picture, {}), draw_terminal(drawn.picture, {}));
  }
}

TEST(Picture, StridesAndTypesDoNotMatter) {
  const Drawn drawn = drawn_picture("words");
  const ConstView rows = drawn.picture.panels[0].weights;
  Tensor columns(DType::kFloat64, {9, 8});
  for (Index i = 0; i < 8; ++i) {
    for (Index j = 0; j < 9; ++j) {
      columns.view().at<double>({j, i}) = static_cast<double>(rows.at<float>({i, j}));
    }
  }
  Picture turned = drawn.picture;
  turned.panels[0].weights = transpose(ConstView(columns.view()), 0, 1);
  EXPECT_EQ(draw_svg(turned), draw_svg(drawn.picture));
  EXPECT_EQ(draw_table(turned), draw_table(drawn.picture));
  EXPECT_EQ(draw_terminal(turned, {}), draw_terminal(drawn.picture, {}));
}

TEST(Picture, HalfPrecisionIsRead) {
  Tensor bf16(DType::kBFloat16, {1, 2});
  bf16.view().at<BFloat16>({0, 0}) = BFloat16(0.5F);
  bf16.view().at<BFloat16>({0, 1}) = BFloat16(0.25F);
  EXPECT_NE(draw_table(one_number(bf16)).find("0  0.5000  0.2500\n"), std::string::npos);
  Tensor f16(DType::kFloat16, {1, 1});
  f16.view().at<Float16>({0, 0}) = Float16(0.125F);
  EXPECT_NE(draw_table(one_number(f16)).find("0  0.1250\n"), std::string::npos);
}

// Rewritten with QKV_UPDATE_GOLDEN=1 in the environment; look at them before committing.
TEST(Picture, SvgIsAsItWas) {
  for (const std::string name : {"words", "kinds", "kinds_log", "one", "scores", "zeros", "hard"}) {
    const std::string path = std::string(QKV_SOURCE_DIR) + "/tests/golden/" + name + ".svg";
    const std::string svg = draw_svg(drawn_picture(name).picture);
    if (std::getenv("QKV_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << svg;
    EXPECT_EQ(svg, test::read(path)) << "other than " << path;
  }
}

// ---- the layout of SVG ------------------------------------------------------------------------

// The numbers at an axis of the first panel: 'q' or 'k'.
std::vector<Index> labels_of(const std::string& svg, char axis) {
  std::vector<Index> numbers;
  const std::string start = std::string("id=\"p0-") + axis;
  for (std::size_t at = svg.find(start); at != svg.npos; at = svg.find(start, at + 1)) {
    const std::size_t number = at + start.size();
    if (std::isdigit(static_cast<unsigned char>(svg[number])) == 0) continue;
    numbers.push_back(std::stoll(svg.substr(number)));
  }
  return numbers;
}

TEST(PictureLayout, NumbersHaveOneStepOnBothAxes) {
  const float one = 1;
  const auto labels = [&](Index queries, Index keys, char axis) {
    Picture picture;
    picture.panels = {{"", ConstView(&one, {queries, keys}, {0, 0}), {}}};
    return labels_of(draw_svg(picture), axis);
  };
  for (const auto& [queries, keys] : {std::pair{1000, 1000}, {60, 60}, {400, 1000}, {2000, 300}}) {
    SCOPED_TRACE(testing::Message() << queries << " x " << keys);
    const auto rows = labels(queries, keys, 'q');
    const auto columns = labels(queries, keys, 'k');
    ASSERT_GE(rows.size(), 2U);
    ASSERT_GE(columns.size(), 2U);
    EXPECT_EQ(rows[1] - rows[0], columns[1] - columns[0]);
  }
  // An axis that would keep only its 0 uses its own step.
  EXPECT_EQ(labels(30, 1000, 'q'), (std::vector<Index>{0, 10, 20}));
  EXPECT_EQ(labels(50, 1, 'q').size(), 50U);
}

TEST(PictureLayout, PanelsInARow) {
  Drawn drawn = drawn_picture("heads");
  // Queries have their name left of the first panel of each row.
  const auto rows = [&](int columns) {
    drawn.picture.columns = columns;
    const std::string svg = draw_svg(drawn.picture);
    std::string first;
    for (int p = 0; p < 8; ++p) {
      if (svg.find("id=\"queries-" + std::to_string(p)) != svg.npos) first += std::to_string(p);
    }
    return first;
  };
  EXPECT_EQ(rows(0), "04");
  EXPECT_EQ(rows(1), "01234567");
  EXPECT_EQ(rows(3), "036");
  EXPECT_EQ(rows(8), "0");
  EXPECT_EQ(rows(2'000'000'000), "0");
  const std::string all = draw_svg(drawn.picture);
  drawn.picture.columns = 8;
  EXPECT_EQ(draw_svg(drawn.picture), all);
}

// ---- the model ------------------------------------------------------------------------------

TEST(PictureModel, BarHasTwoToFiveTicksInOrder) {
  for (const ColourScale scale : {ColourScale::kLinear, ColourScale::kSqrt, ColourScale::kLog}) {
    for (const double size : {5e-324, 1e-300, 1e-9, 0.037, 0.5, 0.81, 1.0, 3.0, 7e5, 1e308}) {
      for (const double low : {0.0, -0.1, -1.0, -30.0}) {
        Tensor weights(DType::kFloat64, {1, 2});
        weights.view().at<double>({0, 0}) = size;
        weights.view().at<double>({0, 1}) = low * size;
        Picture picture = one_number(weights);
        picture.scale = scale;
        if (!std::isfinite(low * size)) continue;
        const picture::Model model(picture, "test");
        const auto ticks = model.ticks();
        SCOPED_TRACE(testing::Message() << size << " " << low << " " << static_cast<int>(scale));
        EXPECT_GE(ticks.size(), size < 1e-300 || scale == ColourScale::kLog ? 1U : 2U);
        EXPECT_LE(ticks.size(), 6U);
        EXPECT_EQ(ticks.back().place, 1);
        for (std::size_t n = 0; n < ticks.size(); ++n) {
          EXPECT_TRUE(ticks[n].place >= 0 && ticks[n].place <= 1) << ticks[n].text;
          EXPECT_TRUE(n == 0 || ticks[n].place > ticks[n - 1].place) << ticks[n].text;
        }
        EXPECT_TRUE(std::isfinite(model.place(size)));
        EXPECT_EQ(model.place(size), 1);
        EXPECT_EQ(model.place(low * size), 0);
      }
    }
  }
}

TEST(PictureModel, RangeIsOfFiniteNumbersThatAreNotMasked) {
  const Drawn drawn = drawn_picture("kinds");
  const picture::Model model(drawn.picture, "test");
  EXPECT_EQ(model.lowest(), 0);
  EXPECT_LT(model.highest(), 1);
  EXPECT_EQ(model.cell(0, 0, 0).kind, picture::CellKind::kNumber);
  EXPECT_EQ(model.cell(0, 1, 0).kind, picture::CellKind::kMasked);
  EXPECT_EQ(model.cell(0, 2, 0).kind, picture::CellKind::kZero);
  EXPECT_EQ(model.cell(0, 3, 0).kind, picture::CellKind::kNotFinite);
  EXPECT_EQ(model.cell(0, 4, 0).kind, picture::CellKind::kNotFinite);
  EXPECT_EQ(model.not_finite_name(), "not finite");
}

TEST(PictureModel, ConstantMapsHaveABar) {
  for (const float value : {0.0F, 0.25F, -3.0F}) {
    Tensor weights(DType::kFloat32, {1, 1});
    weights.values<float>()[0] = value;
    const Picture picture = one_number(weights);
    const picture::Model model(picture, "test");
    EXPECT_LT(model.lowest(), model.highest()) << value;
    EXPECT_TRUE(std::isfinite(model.place(static_cast<double>(value)))) << value;
  }
}

TEST(PictureModel, ScalesPlaceNumbers) {
  Tensor weights(DType::kFloat32, {1, 1});
  weights.values<float>()[0] = 1;
  Picture picture = one_number(weights);
  const auto place = [&](ColourScale scale, double value) {
    picture.scale = scale;
    return picture::Model(picture, "test").place(value);
  };
  EXPECT_EQ(place(ColourScale::kLinear, 0.25), 0.25);
  EXPECT_EQ(place(ColourScale::kSqrt, 0.25), 0.5);
  EXPECT_NEAR(place(ColourScale::kLog, 0.01), 0.5, 1e-12);
  EXPECT_EQ(place(ColourScale::kLog, 1e-5), 0);
  EXPECT_EQ(place(ColourScale::kLog, 0), 0);
  picture.highest = 0.5;
  EXPECT_EQ(place(ColourScale::kLinear, 0.25), 0.5);
  EXPECT_EQ(place(ColourScale::kLinear, 0.75), 1);
  EXPECT_EQ(picture::Model(picture, "test").bar_remark(), "up to 1");
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
            "0 [ ░▒▓█] 0.954   ·  exactly 0   ╱╱ masked   ?? not finite\n"
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
  EXPECT_TRUE(cells(0).starts_with("\x1b[0;48;5;191m  ")) << cells(0);
  EXPECT_TRUE(cells(1).starts_with("\x1b[0;38;5;243m╱")) << cells(1);
  EXPECT_TRUE(cells(2).starts_with("\x1b[0;38;5;243;48;5;233m· ")) << cells(2);
  EXPECT_TRUE(cells(3).starts_with("\x1b[0;1;38;5;231;48;5;166m??")) << cells(3);
  EXPECT_TRUE(cells(5).starts_with("\x1b[0;48;5;60m  ")) << cells(5);
}

// Of 256, by trying all: the first 16 are the user's own.
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

// Contrast by WCAG 2.1. The smallest weight stands out from a dark background, and nothing is
// white.
TEST(PictureColours, TerminalsShowEveryWeightOnBlackAndOnWhite) {
  const auto linear = [](double c) {
    return c / 255 <= 0.04045 ? c / 255 / 12.92 : std::pow((c / 255 + 0.055) / 1.055, 2.4);
  };
  const auto luminance = [&](const picture::Rgb& c) {
    return 0.2126 * linear(c.red) + 0.7152 * linear(c.green) + 0.0722 * linear(c.blue);
  };
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

// For any labels: no line is too long, the only escapes are colours, ASCII is ASCII.
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
  // 30 lines of cells; the last key's, "European", is the tallest label's own 8.
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

TEST(PictureTable, HasATableForEachPanel) {
  const std::string text = draw_table(drawn_picture("heads").picture);
  for (int head = 0; head < 8; ++head) {
    EXPECT_NE(text.find("\nhead " + std::to_string(head) + "\n"), std::string::npos);
  }
  EXPECT_TRUE(text.starts_with("Eight heads of layer 3\n\nhead 0\n"));
}

}  // namespace
}  // namespace qkv::app
