// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "picture/colours.h"
#include "picture/model.h"
#include "tests/app/files/files.h"
#include "tests/app/picture/pictures.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Drawn;
using test::drawn_picture;
using test::drawn_pictures;

Picture picture_of(const Tensor& map) {
  Picture picture;
  picture.panels = {{"", map.view(), {}}};
  return picture;
}

// ---- the call -------------------------------------------------------------------------------

TEST(Picture, RefusesInvalidPictures) {
  const Tensor weights = test::likely_weights(2, 3, 1);
  const Tensor other = test::likely_weights(3, 3, 1);
  const Tensor whole(DType::kInt32, {2, 3});
  const Tensor cube(DType::kFloat32, {1, 2, 3});
  const Tensor empty(DType::kFloat32, {0, 3});
  const Tensor allowed(DType::kBool, {2, 2});
  const auto said = [](const Picture& picture) {
    return complaint<Error>([&] { draw_table(picture); });
  };
  Picture good = picture_of(weights);
  EXPECT_EQ(said({}), "draw_table: panels must be at least one");
  EXPECT_EQ(said({.panels = {{}}}), "draw_table: panels[0].weights is absent");
  EXPECT_EQ(said(picture_of(whole)),
            "draw_table: panels[0].weights must hold real numbers, got int32 [2,3]");
  EXPECT_EQ(said(picture_of(cube)),
            "draw_table: panels[0].weights must be a matrix [Tq,Tk] of at least one cell, got "
            "float32 [1,2,3]");
  EXPECT_EQ(said(picture_of(empty)),
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

TEST(Picture, RefusesTooManyCells) {
  const float one = 1;  // viewed as a matrix of any size
  Picture picture;
  picture.panels = {{"", ConstView(&one, {2001, 2000}, {0, 0}), {}}};
  EXPECT_EQ(complaint<Error>([&] { draw_svg(picture); }),
            "draw_svg: panels must have at most 4000000 cells, and 10000 queries or keys; got maps "
            "x queries x keys = 1 x 2001 x 2000: select or reduce");
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
  Picture transposed = drawn.picture;
  transposed.panels[0].weights = transpose(ConstView(columns.view()), 0, 1);
  EXPECT_EQ(draw_svg(transposed), draw_svg(drawn.picture));
  EXPECT_EQ(draw_table(transposed), draw_table(drawn.picture));
  EXPECT_EQ(draw_terminal(transposed, {}), draw_terminal(drawn.picture, {}));
}

TEST(Picture, HalfPrecisionIsRead) {
  Tensor bf16(DType::kBFloat16, {1, 2});
  bf16.view().at<BFloat16>({0, 0}) = BFloat16(0.5F);
  bf16.view().at<BFloat16>({0, 1}) = BFloat16(0.25F);
  EXPECT_NE(draw_table(picture_of(bf16)).find("0  0.5000  0.2500\n"), std::string::npos);
  Tensor f16(DType::kFloat16, {1, 1});
  f16.view().at<Float16>({0, 0}) = Float16(0.125F);
  EXPECT_NE(draw_table(picture_of(f16)).find("0  0.1250\n"), std::string::npos);
}

// QKV_UPDATE_GOLDEN=1 in the environment rewrites the golden files; look at them before committing.
TEST(Picture, SvgIsAsItWas) {
  for (const std::string name : {"words", "kinds", "kinds_log", "one", "scores", "zeros", "hard"}) {
    const std::string path = std::string(QKV_SOURCE_DIR) + "/tests/golden/" + name + ".svg";
    const std::string svg = draw_svg(drawn_picture(name).picture);
    if (std::getenv("QKV_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << svg;
    EXPECT_EQ(svg, test::read(path)) << "differs from " << path;
  }
}

// ---- the layout of SVG ------------------------------------------------------------------------

// The numbers of those queries ('q') or keys ('k') of the first panel that have a label.
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
  // An axis on which the common step leaves only label 0 has a step of its own.
  EXPECT_EQ(labels(30, 1000, 'q'), (std::vector<Index>{0, 10, 20}));
  EXPECT_EQ(labels(50, 1, 'q').size(), 50U);
}

TEST(PictureLayout, PanelsInARow) {
  Drawn drawn = drawn_picture("heads");
  // Returns the panels that begin a row: the name of the queries is left of them.
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

TEST(PictureModel, BarHasTwoToSixTicksInOrder) {
  std::size_t most = 0;
  for (const ColourScale scale : {ColourScale::kLinear, ColourScale::kSqrt, ColourScale::kLog}) {
    for (const double size : {5e-324, 1e-300, 1e-9, 0.037, 0.5, 0.81, 1.0, 3.0, 3.5, 7e5, 1e308}) {
      for (const double low : {0.0, -0.1, -1.0 / 7, -1.0, -30.0}) {
        Tensor weights(DType::kFloat64, {1, 2});
        weights.view().at<double>({0, 0}) = size;
        weights.view().at<double>({0, 1}) = low * size;
        Picture picture = picture_of(weights);
        picture.scale = scale;
        if (!std::isfinite(low * size)) continue;
        const picture::Model model(picture, "test");
        const auto ticks = model.ticks();
        SCOPED_TRACE(testing::Message() << size << " " << low << " " << static_cast<int>(scale));
        // A bar that ends at the smallest number above 0 may have only that tick.
        EXPECT_GE(ticks.size(), size < 1e-300 ? 1U : 2U);
        EXPECT_LE(ticks.size(), 6U);
        most = std::max(most, ticks.size());
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
  EXPECT_EQ(most, 6U);
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
    const Picture picture = picture_of(weights);
    const picture::Model model(picture, "test");
    EXPECT_LT(model.lowest(), model.highest()) << value;
    EXPECT_TRUE(std::isfinite(model.place(static_cast<double>(value)))) << value;
  }
}

TEST(PictureModel, ScalesPlaceNumbers) {
  Tensor weights(DType::kFloat32, {1, 1});
  weights.values<float>()[0] = 1;
  Picture picture = picture_of(weights);
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
  picture.lowest = 0.1;
  EXPECT_NEAR(place(ColourScale::kLinear, 0.3), 0.5, 1e-12);
  EXPECT_EQ(place(ColourScale::kLinear, 0.05), 0);
  EXPECT_NEAR(place(ColourScale::kSqrt, 0.2), 0.5, 1e-12);
  picture.lowest = 0.005;
  EXPECT_NEAR(place(ColourScale::kLog, 0.05), 0.5, 1e-12);
  EXPECT_EQ(place(ColourScale::kLog, 0.004), 0);
  picture.lowest = -1.5;
  EXPECT_EQ(place(ColourScale::kLinear, -0.5), 0.5);
}

TEST(PictureScale, ALowestNumberBeginsTheBar) {
  Tensor weights(DType::kFloat32, {1, 4});
  const float values[] = {0, 0.125, 0.25, 1};
  std::copy(std::begin(values), std::end(values), weights.values<float>().begin());
  Picture picture = picture_of(weights);
  picture.lowest = 0.25;
  const picture::Model model(picture, "test");
  EXPECT_EQ(model.lowest(), 0.25);
  EXPECT_EQ(model.highest(), 1);
  EXPECT_EQ(model.bar_remark(), "down to 0.125");
  EXPECT_EQ(model.ticks().front().text, "0.25");
  EXPECT_EQ(model.cell(0, 0, 0).kind, picture::CellKind::kZero);  // zeros are not clipped
  EXPECT_EQ(model.cell(0, 0, 1).place, 0);
  const auto refusal = [&](double lowest) {
    picture.lowest = lowest;
    return complaint<Error>([&] { draw_table(picture); });
  };
  for (const double lowest : {1.0, 2.0, std::nan(""), -HUGE_VAL}) {
    EXPECT_TRUE(refusal(lowest).starts_with("draw_table: lowest must be finite and below 1, "))
        << refusal(lowest);
  }
  picture.scale = ColourScale::kLog;
  EXPECT_EQ(refusal(0), "draw_table: lowest must be above 0 on a log scale, got 0");
  picture.colours = Colours::kRedBlue;
  EXPECT_EQ(refusal(0.5),
            "draw_table: lowest must not be given with colours that are centred at 0");
}

}  // namespace
}  // namespace qkv::app
