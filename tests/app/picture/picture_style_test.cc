// SPDX-License-Identifier: Apache-2.0
// Tests of pictures: names, labels, ranges, colours, notes, and the titles and numbers of cells.
#include <cmath>
#include <cstdlib>
#include <deque>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "picture/model.h"
#include "picture/palettes.h"
#include "tests/app/files/files.h"
#include "tests/app/picture/pictures.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Drawn;
using test::drawn_picture;

constexpr ColourScale kScales[] = {ColourScale::kLinear, ColourScale::kSqrt, ColourScale::kLog};
constexpr Colours kAllColours[] = {Colours::kBlue, Colours::kGrey, Colours::kViridis,
                                   Colours::kCividis, Colours::kRedBlue};

// The picture of pictures.h with this name; its memory lives as long as the test program.
Picture lasting_picture(const std::string& name) {
  static std::deque<Drawn> all;
  all.push_back(drawn_picture(name));
  return all.back().picture;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string plain(const Picture& picture) {
  return draw_terminal(picture, {.colours = TerminalColours::kNone});
}

// ---- names ----------------------------------------------------------------------------------

TEST(PictureNames, OfAxesAreDrawnAndInLegends) {
  Picture picture = lasting_picture("words");
  picture.row_name = "target";
  picture.column_name = "source";
  const std::string svg = draw_svg(picture);
  EXPECT_TRUE(has(svg, ">target</text>")) << svg;
  EXPECT_TRUE(has(svg, ">source</text>"));
  EXPECT_FALSE(has(svg, "queries</text>"));
  for (const std::string& text : {plain(picture), draw_table(picture)}) {
    EXPECT_TRUE(has(text, "rows are target, columns are source\n")) << text;
  }
}

// If a map is not high enough for the name of its rows, that name is above the map.
TEST(PictureNames, OfRowsThatHaveNoRoomAreAboveTheMap) {
  EXPECT_TRUE(has(draw_svg(lasting_picture("one")), ">keys (rows: queries)</text>"));
}

TEST(PictureNames, TheBarSaysWhatTheNumbersAre) {
  Picture picture = lasting_picture("words");
  EXPECT_TRUE(has(draw_svg(picture), "id=\"bar-label\""));
  EXPECT_TRUE(has(draw_svg(picture), ">weight</text>"));
  picture.quantity = "score";
  picture.scale = ColourScale::kLog;
  EXPECT_TRUE(has(draw_svg(picture), ">score, log scale</text>"));
  EXPECT_TRUE(has(plain(picture), "score, log scale\n"));
}

TEST(PictureNames, NumbersAreShort) {
  EXPECT_EQ(picture::short_number(0.25, 3), "0.25");
  EXPECT_EQ(picture::short_number(-1e-6, 3), "-1e-6");
  EXPECT_EQ(picture::short_number(50000, 3), "5e4");
  EXPECT_EQ(picture::short_number(1.25e-10, 3), "1.25e-10");
  EXPECT_EQ(picture::short_number(-1e300, 3), "-1e300");
  EXPECT_EQ(picture::short_number(0, 3), "0");
}

TEST(PictureNames, AFontIsOneName) {
  Picture picture = lasting_picture("one");
  picture.font = "Source Code Pro";
  EXPECT_TRUE(has(draw_svg(picture), "'Source Code Pro', 'DejaVu Sans Mono', monospace"));
  for (const std::string font : {"a'b", "a\"b", "a,b", "a;b", "a<b", "a\nb"}) {
    picture.font = font;
    EXPECT_TRUE(complaint<Error>([&] { draw_svg(picture); }).starts_with("draw_svg: font must be"))
        << font;
  }
}

// ---- keys -----------------------------------------------------------------------------------

TEST(PictureKeys, AreRotatedOnlyWhereTheyMustBe) {
  const auto rotated = [](Index size, const std::string& word) {
    const Tensor weights = test::likely_weights(size, size, 1);
    Picture picture;
    picture.panels = {{"", weights.view(), {}}};
    picture.keys.assign(static_cast<std::size_t>(size), "a");
    picture.keys.front() = word;
    const std::string svg = draw_svg(picture);
    return svg.find("rotate(-90)", svg.find("id=\"p0-k0\"")) < svg.find("id=\"p0-k1\"");
  };
  EXPECT_FALSE(rotated(3, "agreement"));
  EXPECT_FALSE(rotated(10, "agreement"));
  EXPECT_FALSE(rotated(20, "four"));
  EXPECT_FALSE(rotated(30, "注意"));
  EXPECT_TRUE(rotated(3, "antidisestablishmentarianism"));
  EXPECT_TRUE(rotated(40, "agreement"));
  EXPECT_TRUE(rotated(200, "of"));
}

// ---- ranges ---------------------------------------------------------------------------------

TEST(PictureRange, OfARowOrAMapEndsAtItsLargest) {
  const double values[] = {0.1, 0.2, 0, 0, 0.4, 0.8, 0.05, 0.01};
  const ConstView all(values, {2, 2, 2});
  Picture picture;
  for (Index p = 0; p < 2; ++p) {
    picture.panels.push_back({"", reshape(slice(all, 0, p, p + 1), {2, 2}), {}});
  }
  const auto place = [&](ColourRange range, Index panel, Index row, Index column) {
    picture.range = range;
    return picture::Model(picture, "test").cell(panel, row, column).place;
  };
  EXPECT_EQ(place(ColourRange::kAll, 0, 0, 1), 0.25);
  EXPECT_EQ(place(ColourRange::kMap, 0, 0, 1), 1);
  EXPECT_EQ(place(ColourRange::kMap, 0, 0, 0), 0.5);
  EXPECT_EQ(place(ColourRange::kMap, 1, 1, 0), 0.0625);
  EXPECT_EQ(place(ColourRange::kRow, 1, 1, 0), 1);
  EXPECT_NEAR(place(ColourRange::kRow, 1, 1, 1), 0.2, 1e-12);
  EXPECT_EQ(place(ColourRange::kRow, 0, 0, 0), 0.5);
  // Zeros stay zeros in a row that has nothing else.
  EXPECT_EQ(picture::Model(picture, "test").cell(0, 1, 0).kind, picture::CellKind::kZero);
}

TEST(PictureRange, LegendsSayIfEachMapOrRowHasItsOwn) {
  Picture picture = lasting_picture("heads");
  picture.range = ColourRange::kRow;
  EXPECT_TRUE(has(draw_svg(picture), ">weight, each row has its own range</text>"));
  EXPECT_TRUE(has(draw_svg(picture), ">max</text>"));
  EXPECT_TRUE(has(plain(picture), "] max   each row has its own range\n"));
  picture.range = ColourRange::kMap;
  EXPECT_TRUE(has(draw_svg(picture), ">head 3, up to 0."));
  EXPECT_TRUE(has(draw_svg(picture), ">max</text>"));
  // One map has one range, so its bar has numbers.
  picture.panels.resize(1);
  Picture usual = picture;
  usual.range = ColourRange::kAll;
  EXPECT_EQ(draw_svg(picture), draw_svg(usual));
}

TEST(PictureRange, AHighestNumberIsForOneRange) {
  Picture picture = lasting_picture("words");
  picture.highest = 1;
  for (const ColourRange range : {ColourRange::kMap, ColourRange::kRow}) {
    picture.range = range;
    if (range == ColourRange::kMap) picture.panels.push_back(picture.panels[0]);
    EXPECT_EQ(complaint<Error>([&] { draw_svg(picture); }),
              "draw_svg: highest must not be given if each map or row has its own range");
  }
  picture.highest.reset();
  picture.lowest = 0;
  EXPECT_EQ(complaint<Error>([&] { draw_svg(picture); }),
            "draw_svg: lowest must not be given if each map or row has its own range");
}

// ---- numbers of both signs ------------------------------------------------------------------

TEST(PictureDifference, IsCentredAtZeroOnEveryScale) {
  for (const ColourScale scale : kScales) {
    Picture picture = lasting_picture("difference");
    picture.scale = scale;
    const picture::Model model(picture, "test");
    SCOPED_TRACE(static_cast<int>(scale));
    EXPECT_EQ(model.highest(), -model.lowest());
    EXPECT_FLOAT_EQ(static_cast<float>(model.highest()), 0.9F);
    EXPECT_EQ(model.place(0), 0.5);
    EXPECT_EQ(model.place(model.highest()), 1);
    EXPECT_EQ(model.place(model.lowest()), 0);
    for (const double x : {1e-9, 0.01, 0.2, 0.7}) {
      EXPECT_NEAR(model.place(x) + model.place(-x), 1, 1e-12) << x;
      EXPECT_GE(model.place(x), 0.5) << x;
    }
    const auto ticks = model.ticks();
    ASSERT_EQ(ticks.size(), 5U);
    EXPECT_EQ(ticks[2].text, "0");
    EXPECT_EQ("-" + ticks[3].text, ticks[1].text);
    EXPECT_EQ("-" + ticks[4].text, ticks[0].text);
  }
  Picture clipped = lasting_picture("difference");
  clipped.highest = 0.5;
  const picture::Model model(clipped, "test");
  EXPECT_EQ(model.lowest(), -0.5);
  EXPECT_EQ(model.place(-0.7), 0);
  EXPECT_TRUE(has(model.bar_label(), "difference, down to -0.9")) << model.bar_label();
}

TEST(PictureDifference, TheSignIsVisibleWithoutColour) {
  const double values[] = {-1, -0.6, -0.3, 0, 0.3, 0.6, 1};
  Picture picture;
  picture.panels = {{"", ConstView(values, {1, 7}), {}}};
  picture.colours = Colours::kRedBlue;
  EXPECT_TRUE(has(plain(picture), "\n0 ▤▤≡≡--  ░░▓▓██\n")) << plain(picture);
  EXPECT_TRUE(has(plain(picture), "-1 [▤≡=- ░▒▓█] 1")) << plain(picture);
  const std::string ascii =
      draw_terminal(picture, {.colours = TerminalColours::kNone, .unicode = false});
  EXPECT_TRUE(has(ascii, "\n0 MMmm--  ::##@@\n")) << ascii;
}

TEST(PictureDifference, OfEqualMapsHasABar) {
  Picture picture = lasting_picture("zeros");
  picture.colours = Colours::kRedBlue;
  const picture::Model model(picture, "test");
  EXPECT_EQ(model.lowest(), -1);
  EXPECT_EQ(model.highest(), 1);
  EXPECT_EQ(model.cell(0, 0, 0).place, 0.5);
}

// ---- colours --------------------------------------------------------------------------------

int lightness(const picture::Rgb& c) { return 2126 * c.red + 7152 * c.green + 722 * c.blue; }

TEST(PicturePalettes, SequencesFallOrRiseInLightness) {
  for (const Colours colours : kAllColours) {
    SCOPED_TRACE(static_cast<int>(colours));
    const picture::Palette palette = picture::palette_of(colours);
    for (const picture::Bar* bar : {&palette.paper, &palette.terminal}) {
      const std::size_t from = palette.centred ? picture::kBarSteps / 2 : 0;
      const bool rises = lightness(bar->back()) > lightness((*bar)[from]);
      for (std::size_t n = from + 1; n < bar->size(); ++n) {
        EXPECT_EQ(lightness((*bar)[n]) > lightness((*bar)[n - 1]), rises) << n;
        if (!palette.centred) continue;
        EXPECT_EQ(lightness((*bar)[16 - n]) > lightness((*bar)[17 - n]), rises) << n;
      }
    }
  }
}

// Exact zeros and non-finite numbers have colours that no other number has.
TEST(PicturePalettes, ZerosAndFaultsAreNotNumbers) {
  for (const Colours colours : kAllColours) {
    const picture::Palette palette = picture::palette_of(colours);
    if (palette.centred) continue;
    for (int level = 0; level < picture::kLevels; ++level) {
      const picture::Rgb paper = picture::colour_at(palette.paper, level);
      const auto apart = [](const picture::Rgb& a, const picture::Rgb& b) {
        return std::abs(a.red - b.red) + std::abs(a.green - b.green) + std::abs(a.blue - b.blue);
      };
      EXPECT_GE(apart(paper, palette.paper_zero), 20) << static_cast<int>(colours) << level;
      EXPECT_GE(apart(paper, picture::kFault), 60) << static_cast<int>(colours) << level;
      EXPECT_GE(apart(picture::colour_at(palette.terminal, level), palette.terminal_zero), 60);
    }
  }
}

TEST(PicturePalettes, OfTerminalsAreTheChosenOnes) {
  Picture picture = lasting_picture("kinds");
  picture.colours = Colours::kViridis;
  EXPECT_TRUE(has(draw_terminal(picture, {}), "\x1b[0;48;2;253;231;37m  "));
}

// ---- titles of cells ------------------------------------------------------------------------

TEST(PictureCells, HaveTitles) {
  const std::string svg = draw_svg(lasting_picture("kinds"));
  EXPECT_EQ(count(svg, "</title></path>"), 30U);
  EXPECT_TRUE(has(svg, "<path d=\"M0 0h1v1h-1z\"><title>number → 0: 0.9542</title></path>")) << svg;
  for (const std::string text : {"masked → 1: masked", "zero → 0: 0", "NaN → 2: NaN",
                                 "infinite → 3: infinite", "tiny → 4: 1e-6"}) {
    EXPECT_TRUE(has(svg, "<title>" + text + "</title>")) << text;
  }
  const std::string signs = draw_svg(lasting_picture("difference"));
  EXPECT_TRUE(has(signs, "<title>the → the: -0.9</title>"));
  EXPECT_TRUE(has(signs, ": +0."));
}

TEST(PictureCells, HaveNoTitlesInLargeMapsUnlessAsked) {
  const float one = 1;
  Picture picture;
  picture.panels = {{"", ConstView(&one, {100, 200}, {0, 0}), {}}};
  EXPECT_EQ(count(draw_svg(picture), "</title></path>"), 20'000U);
  picture.panels = {{"", ConstView(&one, {100, 201}, {0, 0}), {}}};
  EXPECT_EQ(count(draw_svg(picture), "</title></path>"), 0U);
  picture.cell_titles = CellTitles::kAlways;
  EXPECT_EQ(count(draw_svg(picture), "</title></path>"), 20'100U);
  picture = lasting_picture("kinds");
  picture.cell_titles = CellTitles::kNever;
  EXPECT_EQ(count(draw_svg(picture), "</title></path>"), 0U);
}

// ---- notes ----------------------------------------------------------------------------------

TEST(PictureNotes, AreBelowTheFigureOrOnlyInItsDescription) {
  Picture picture = lasting_picture("words");
  const std::string under = draw_svg(picture);
  EXPECT_TRUE(has(under, "<desc>rows are queries, columns are keys\nmean of 8 heads</desc>"));
  const std::size_t group = under.find("<g id=\"notes\">");
  ASSERT_NE(group, under.npos);
  EXPECT_GT(group, under.find("id=\"bar-label\""));
  EXPECT_TRUE(has(under.substr(group), ">mean of 8 heads</text>\n</g>\n</svg>"));
  picture.notes_drawn = false;
  const std::string aside = draw_svg(picture);
  EXPECT_TRUE(has(aside, "mean of 8 heads</desc>"));
  EXPECT_FALSE(has(aside, "mean of 8 heads</text>"));
  picture.notes.clear();
  EXPECT_FALSE(has(draw_svg(picture), "id=\"notes\""));
}

// The line above the notes ends at the right margin, which is 16 units wide. One document is
// narrower than the room for notes; the other one is as wide as its note needs.
TEST(PictureNotes, HaveALineThatEndsInsideTheMargin) {
  const auto number_after = [](std::string_view text, std::string_view mark, std::size_t from) {
    const std::size_t at = text.find(mark, from) + mark.size();
    return std::stod(std::string(text.substr(at, text.find_first_not_of("0123456789.", at) - at)));
  };
  const float one = 1;
  Picture picture;
  picture.panels = {{"", ConstView(&one, {1, 1}), {}}};
  for (const std::string note :
       {"short", "a note that is longer than any of the rest of the picture"}) {
    picture.notes = {note};
    const std::string svg = draw_svg(picture);
    const std::size_t line = svg.find("d=\"M16 ", svg.find("<g id=\"notes\">"));
    EXPECT_NEAR(16 + number_after(svg, "h", line), number_after(svg, " width=\"", 0) - 16, 1)
        << svg;
  }
}

// ---- numbers in cells -----------------------------------------------------------------------

// The font size and the texts of the numbers in the cells of a map with one row, `values`.
std::pair<std::string, std::vector<std::string>> numbers_in(const std::vector<double>& values) {
  Picture picture;
  picture.panels = {{"", ConstView(values.data(), {1, static_cast<Index>(values.size())}), {}}};
  const std::string svg = draw_svg(picture);
  const std::regex cell("id=\"p0-v[^>]* font-size=\"([0-9.]+)\"[^>]*>([^<]*)<");
  std::pair<std::string, std::vector<std::string>> found;
  for (std::sregex_iterator at(svg.begin(), svg.end(), cell), end; at != end; ++at) {
    found.first = (*at)[1];
    found.second.push_back((*at)[2]);
  }
  return found;
}

TEST(PictureNumbers, HaveTheDigitsThatFit) {
  using Texts = std::vector<std::string>;
  const auto texts = [](const std::vector<double>& values) {
    const auto found = numbers_in(values);
    EXPECT_EQ(found.first, "10");
    return found.second;
  };
  EXPECT_EQ(texts({0.5, 0.25}), (Texts{"0.50", "0.25"}));
  EXPECT_EQ(texts({16, 8}), (Texts{"16.0", "8.0"}));
  EXPECT_EQ(texts({-16, 8, 0}), (Texts{"-16.0", "8.0", "0"}));
  EXPECT_EQ(texts({9.99, 1}), (Texts{"9.99", "1.00"}));
  EXPECT_EQ(texts({-123.4, 8.25, 0.3}), (Texts{"-123", "8", "0"}));
  EXPECT_EQ(texts({1234.5, -987.6}), (Texts{"1234", "-988"}));
  EXPECT_EQ(texts({0.05, 0.01}), (Texts{"0.050", "0.010"}));
}

TEST(PictureNumbers, AreSmallerOrPowersOfTenIfNoDigitCanGo) {
  const auto found = numbers_in({-12345, 1});
  EXPECT_EQ(found.first, "8");
  EXPECT_EQ(found.second, (std::vector<std::string>{"-12345", "1"}));
  EXPECT_EQ(numbers_in({2e300, -1e-7}).second, (std::vector<std::string>{"2e+300", "-1e-07"}));
  EXPECT_TRUE(numbers_in({0.001}).second.empty());  // too small for three decimals
}

}  // namespace
}  // namespace qkv::app
