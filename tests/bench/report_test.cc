// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <qkv/error.h>

#include "bench/groups.h"

namespace {

using qkv::bench::Figure;
using qkv::bench::Row;
using qkv::bench::Verdict;

Row share_row(double value, double target) {
  Row row;
  row.name = "forward/T1-D1";
  row.path = "some/path";
  row.figure = Figure::kPeakShare;
  row.time = {.n = 5, .best = 0.9, .median = 1, .spread = 0.1};
  row.base = {.n = 20, .best = 1, .median = 1, .spread = 0};
  row.value = value;
  row.target = target;
  row.work = 2e9;
  return row;
}

TEST(Verdicts, SharesMustReachAndTimesMustNotPassTheirTargets) {
  EXPECT_EQ(verdict_of(share_row(0.85, 0.84)), Verdict::kMet);
  EXPECT_EQ(verdict_of(share_row(0.83, 0.84)), Verdict::kMissed);
  Row ratio = share_row(1.2, 1.25);
  ratio.figure = Figure::kPlainRatio;
  EXPECT_EQ(verdict_of(ratio), Verdict::kMet);
  ratio.value = 1.3;
  EXPECT_EQ(verdict_of(ratio), Verdict::kMissed);
  ratio.target.reset();
  EXPECT_EQ(verdict_of(ratio), Verdict::kNone);
}

TEST(Verdicts, ARowWithoutAFigureIsNoisyAndOneWithAFaultIsWrong) {
  Row row = share_row(0.85, 0.84);
  row.value.reset();
  EXPECT_EQ(verdict_of(row), Verdict::kNoisy);
  row.fault = "got 1, reference 2";
  EXPECT_EQ(verdict_of(row), Verdict::kWrong);
  EXPECT_EQ(wrong_rows(std::vector{row, share_row(1, 1)}), 1);
}

TEST(Text, SaysNoisyInsteadOfAShare) {
  Row row = share_row(0.85, 0.84);
  EXPECT_NE(report_text({}, std::vector{row}).find("85.0 % of the peak"), std::string::npos);
  EXPECT_NE(report_text({}, std::vector{row}).find(">= 84.0 % met"), std::string::npos);
  row.value.reset();
  row.base.spread = 0.05;
  const std::string text = report_text({}, std::vector{row});
  EXPECT_NE(text.find("noisy (5.0 %)"), std::string::npos);
  EXPECT_EQ(text.find("% of the peak"), std::string::npos);
}

TEST(Text, SaysWrong) {
  Row row = share_row(0.85, 0.84);
  row.fault = "got 1, reference 2";
  EXPECT_NE(report_text({}, std::vector{row}).find("WRONG: got 1, reference 2"), std::string::npos);
}

TEST(Json, NamesEachFigureByWhatItIs) {
  Row row = share_row(0.85, 0.84);
  row.peers = {{"other", "", 2, 2.5, 0.01}};
  const auto json = report_json({}, std::vector{row})["rows"]["forward/T1-D1"];
  EXPECT_EQ(json["share_of_peak"], 0.85);
  EXPECT_EQ(json["target"], 0.84);
  EXPECT_EQ(json["verdict"], "met");
  EXPECT_EQ(json["n"], 5);
  EXPECT_EQ(json["median"], 1);
  EXPECT_EQ(json["spread"], 0.1);
  EXPECT_EQ(json["rate"], 2e9);
  EXPECT_EQ(json["peer_ratio"], 2.5);
  row.value.reset();
  EXPECT_TRUE(
      report_json({}, std::vector{row})["rows"]["forward/T1-D1"]["share_of_peak"].is_null());
}

TEST(Peers, InSeveralFormsAreToldApart) {
  Row row = share_row(0.85, 0.84);
  row.peers = {{"other", "plain", 2, 2.5, 0.01}, {"other", "packed", 3, 3.5, 0.01}};
  const auto json = report_json({}, std::vector{row})["rows"]["forward/T1-D1"];
  EXPECT_EQ(json["peer"], "other");
  EXPECT_EQ(json["peers"]["plain"]["ratio"], 2.5);
  EXPECT_EQ(json["peers"]["packed"]["median"], 3);
  EXPECT_FALSE(json.contains("peer_ratio"));
  const std::string text = report_text({}, std::vector{row});
  EXPECT_NE(text.find("other, plain: 2.00 s, 2.50x our time"), std::string::npos);
  EXPECT_NE(text.find("other, packed: 3.00 s, 3.50x our time"), std::string::npos);
}

TEST(Rates, AreOfUnits) {
  Row row = share_row(26e9, 25e9);
  row.figure = Figure::kUnitRate;
  EXPECT_EQ(verdict_of(row), Verdict::kMet);
  EXPECT_NE(report_text({}, std::vector{row}).find("26.00 G/s of (i,j,u)"), std::string::npos);
  EXPECT_NE(report_text({}, std::vector{row}).find(" 2.0 G/s "), std::string::npos);  // work / s
  EXPECT_EQ(report_json({}, std::vector{row})["rows"]["forward/T1-D1"]["units_per_second"], 26e9);
  row.value = 24e9;
  EXPECT_EQ(verdict_of(row), Verdict::kMissed);
  row.figure = Figure::kRateShare;
  row.value = 0.72;
  row.target = 0.7;
  EXPECT_NE(report_text({}, std::vector{row}).find("72.0 % of the large call's rate"),
            std::string::npos);
  EXPECT_EQ(report_json({}, std::vector{row})["rows"]["forward/T1-D1"]["share_of_rate"], 0.72);
}

TEST(Groups, ByDefaultAreAllButTheLongOnes) {
  std::string names;
  for (const auto& group : qkv::bench::chosen_groups({})) names += std::string(group.name) + " ";
  EXPECT_EQ(names,
            "forward backward options custom sums values decode many threads additive bilinear "
            "dense small ");
  EXPECT_EQ(qkv::bench::chosen_groups({"small", "widths"}).front().name, "widths");
  EXPECT_THROW(qkv::bench::chosen_groups({"smal"}), qkv::Error);
}

}  // namespace
