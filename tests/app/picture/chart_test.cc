// SPDX-License-Identifier: Apache-2.0
// Tests of charts beyond tests/app/commands/curve_test.py, which tests the pictures of runs.
#include "picture/chart.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "picture/ticks.h"
#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;

std::vector<std::string> texts(const picture::ScaleAxis& axis) {
  std::vector<std::string> all;
  for (const picture::Tick& tick : axis.ticks) all.push_back(tick.text);
  return all;
}

using Texts = std::vector<std::string>;

TEST(Ticks, AreRound) {
  EXPECT_EQ(texts(picture::value_axis(0.31, 2.57, 6)),
            (Texts{"0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"}));
  EXPECT_EQ(texts(picture::value_axis(96.1, 99.4, 4)), (Texts{"96", "97", "98", "99", "100"}));
  EXPECT_EQ(texts(picture::value_axis(-3, 5, 4)), (Texts{"-4", "-2", "0", "2", "4", "6"}));
  EXPECT_EQ(texts(picture::value_axis(0, 0, 4)), (Texts{"0.00", "0.25", "0.50", "0.75", "1.00"}));
  EXPECT_EQ(texts(picture::value_axis(-2, -2, 4)), (Texts{"-2.0", "-1.5", "-1.0", "-0.5", "0.0"}));
  EXPECT_EQ(texts(picture::running_axis(38.2, 8)),
            (Texts{"0", "5", "10", "15", "20", "25", "30", "35"}));
  EXPECT_EQ(texts(picture::running_axis(12345, 4)), (Texts{"0", "5,000", "10,000"}));
  EXPECT_EQ(texts(picture::running_axis(0, 2)), (Texts{"0.0", "0.5", "1.0"}));
  EXPECT_EQ(picture::running_axis(12345, 4).place(12345), 1);
  EXPECT_EQ(picture::tick_text(-1234567.5, 2.5), "-1,234,567.5");
  EXPECT_EQ(picture::tick_text(2e-9, 1e-9), "2e-9");
}

// Numbers that differ by a few roundings count as equal: a step between them would be so small that
// adding it would change nothing.
TEST(Ticks, OfNearlyEqualNumbers) {
  EXPECT_EQ(texts(picture::value_axis(1, std::nextafter(1, 2), 4)),
            (Texts{"0.00", "0.25", "0.50", "0.75", "1.00"}));
  EXPECT_EQ(texts(picture::value_axis(-2, std::nextafter(-2, 0), 4)),
            (Texts{"-2.0", "-1.5", "-1.0", "-0.5", "0.0"}));
  EXPECT_EQ(texts(picture::value_axis(43.09, 43.09000000000001, 6)),
            (Texts{"0", "10", "20", "30", "40", "50"}));
  EXPECT_EQ(texts(picture::value_axis(1, 1.00004, 4)),
            (Texts{"1.00000", "1.00001", "1.00002", "1.00003", "1.00004"}));
}

// The step of an axis that ends at one of the smallest numbers would be 0.
TEST(Ticks, OfTheSmallestNumbers) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const Texts unit{"0.00", "0.25", "0.50", "0.75", "1.00"};
  EXPECT_EQ(texts(picture::running_axis(kLeast, 4)), unit);
  EXPECT_EQ(texts(picture::value_axis(0, kLeast, 4)), unit);
  EXPECT_EQ(texts(picture::value_axis(kLeast, kLeast, 4)), unit);
  for (const double size : {kLeast, 1e-310, 1e-301, 1e-299}) {
    const picture::ScaleAxis axis = picture::value_axis(-size, size, 4);
    EXPECT_GE(axis.ticks.size(), 2U) << size;
    EXPECT_TRUE(std::isfinite(axis.place(size))) << size;
    const std::string text =
        draw_terminal({.runs = {{"run", ""}},
                       .panels = {{"loss", {{.points = {{0, -size, ""}, {size, size, ""}}}}}}},
                      {});
    EXPECT_EQ(text.find("nan"), std::string::npos) << size;
  }
}

Chart chart_of(std::vector<ChartPoint> points) {
  return {.runs = {{"run", ""}}, .panels = {{"loss", {{.points = std::move(points)}}}}};
}

TEST(Chart, RefusesInvalidCharts) {
  const auto said = [](const Chart& chart) { return complaint<Error>([&] { draw_svg(chart); }); };
  const double nan = std::nan("");
  EXPECT_EQ(said({}), "draw_svg: chart must have a point to draw, got none");
  EXPECT_EQ(said(chart_of({{1, nan, ""}, {nan, 1, ""}, {1, 1e300, ""}})),
            "draw_svg: chart must have a point to draw, got none");
  Chart chart = chart_of({{1, 1, ""}});
  EXPECT_FALSE(draw_svg(chart).empty());
  chart.panels[0].series[0].run = 1;
  EXPECT_EQ(said(chart), "draw_svg: chart must have only series of runs below 1, got run 1");
  EXPECT_EQ(complaint<Error>([&] {
              draw_terminal(chart_of({{1, 1, ""}}), {.columns = 0});
            }),
            "draw_terminal: style must have at least 1 column, got 0");
}

TEST(Chart, ManyPointsAreALineWithoutDots) {
  Chart chart = chart_of({});
  ChartSeries& series = chart.panels[0].series[0];
  series.stroke = ChartStroke::kMarked;
  for (int n = 0; n < 50; ++n) series.points.push_back({static_cast<double>(n), 1.0 + n, "here"});
  EXPECT_NE(draw_svg(chart).find("<title>here"), std::string::npos);
  for (int n = 50; n < 500; ++n) series.points.push_back({static_cast<double>(n), 1.0 + n, "here"});
  EXPECT_EQ(draw_svg(chart).find("<title>here"), std::string::npos);
}

}  // namespace
}  // namespace qkv::app
