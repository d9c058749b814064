// SPDX-License-Identifier: Apache-2.0
// Tests the warnings about handmade maps with one fault each; good maps must give no warning.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include <qkv/app/attention_stats.h>
#include <qkv/error.h>

#include "text/special_tokens.h"

namespace qkv::app {
namespace {

using Weight = std::function<double(Index i, Index j)>;

// Whether file_of() divides rows by their sums.
enum class Rows { kNormalised, kRaw };

// An attention file of one head with the weights weight(i, j), not masked.
AttentionFile file_of(Index queries, Index keys, const Weight& weight,
                      Rows rows = Rows::kNormalised, DType dtype = DType::kFloat32) {
  Tensor attn(DType::kFloat64, {1, 1, 1, queries, keys});
  double* at = attn.values<double>().data();
  for (Index i = 0; i < queries; ++i) {
    double sum = 0;
    for (Index j = 0; j < keys; ++j) sum += at[i * keys + j] = weight(i, j);
    if (rows == Rows::kRaw || sum == 0) continue;
    for (Index j = 0; j < keys; ++j) at[i * keys + j] /= sum;
  }
  AttentionFile file;
  file.attn_memory = convert(attn.view(), dtype);
  file.attn = file.attn_memory.view();
  return file;
}

void set_mask(AttentionFile& file, const std::function<bool(Index, Index)>& allowed) {
  file.mask_memory = Tensor(DType::kBool, file.attn.shape());
  for (Index i = 0; i < file.attn.size(3); ++i) {
    for (Index j = 0; j < file.attn.size(4); ++j) {
      file.mask_memory.view().at<bool>({0, 0, 0, i, j}) = allowed(i, j);
    }
  }
  file.mask = file.mask_memory.view();
}

// The warnings about the file's head, one line "fault: text" for each.
std::string warnings(const AttentionFile& file) {
  std::string text;
  for (const Warning& warning : head_report(file, 0, 0, 0).warnings) {
    text += (text.empty() ? "" : "\n") + std::string(name_of(warning.fault)) + ": " + warning.text;
  }
  return text;
}

// Distinct weights without a pattern: of all pairs, or only of those that a causal mask allows.
double uneven(Index i, Index j) { return 1 + std::abs(std::sin(12.9898 * i + 78.233 * j)); }
double causal(Index i, Index j) { return j <= i ? uneven(i, j) : 0; }

TEST(AttentionStats, GoodMapsGiveNoWarning) {
  EXPECT_EQ(warnings(file_of(8, 8, uneven)), "");
  EXPECT_EQ(warnings(file_of(8, 8, causal)), "");
  EXPECT_EQ(warnings(file_of(5, 9, uneven)), "");
  EXPECT_EQ(warnings(file_of(1, 1, uneven)), "");
  EXPECT_EQ(warnings(file_of(2, 2, uneven)), "");
  EXPECT_EQ(warnings(file_of(1, 9, uneven)), "");
  EXPECT_EQ(warnings(file_of(9, 1, uneven)), "");
  // Further good maps: the diagonal, windows of several widths, a different key for each row.
  EXPECT_EQ(warnings(file_of(8, 8, [](Index i, Index j) { return i == j ? 1 : 0; })), "");
  for (const Index width : {1, 2, 3}) {
    EXPECT_EQ(warnings(file_of(9, 9,
                               [width](Index i, Index j) {
                                 return std::abs(i - j) <= width ? uneven(i, j) + (i == j ? 3 : 0)
                                                                 : 0;
                               })),
              "");
  }
  EXPECT_EQ(warnings(file_of(8, 8, [](Index i, Index j) { return j == 3 * i % 8 ? 1 : 0; })), "");
}

TEST(AttentionStats, GoodMapsOfOtherTypesGiveNoWarning) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    EXPECT_EQ(warnings(file_of(60, 60, uneven, Rows::kNormalised, dtype)), "");
    EXPECT_EQ(warnings(file_of(60, 60, causal, Rows::kNormalised, dtype)), "");
  }
}

TEST(AttentionStats, NumbersOfAHead) {
  const AttentionFile file = file_of(3, 4, [](Index i, Index j) {
    return i == 0 ? 0.25 : i == 1 && (j == 0 || j == 3) ? 0.5 : 0.0;
  });
  const HeadStatistics head = head_report(file, 0, 0, 0).statistics;
  EXPECT_EQ(head.rows, 3);
  EXPECT_EQ(head.zero_rows, 1);
  EXPECT_NEAR(head.entropy, (std::log(4) + std::log(2)) / 2, 1e-12);
  EXPECT_NEAR(head.distance, (6.0 / 4 + 3.0 / 2) / 2, 1e-12);
  EXPECT_NEAR(head.first_key, (0.25 + 0.5) / 2, 1e-12);
  EXPECT_EQ(head.worst_row, -1);
}

TEST(AttentionStats, RowsAreTheQueriesThatTheFileNames) {
  AttentionFile file = file_of(
      2, 2, [](Index i, Index j) { return i == j ? 1.0 : 0.0; }, Rows::kRaw);
  file.rows = {3, 7};
  EXPECT_NEAR(head_report(file, 0, 0, 0).statistics.distance, (3 + 6) / 2.0, 1e-12);
  file = file_of(
      4, 4, [](Index i, Index j) { return j == i + 1         ? 1.0
                                          : i == 2 && j == 0 ? 0.5
                                                             : 0.0; },
      Rows::kRaw);
  file.rows = {1, 4, 6, 9};
  file.tgt = {{"the", "cat", "sat", "down"}};
  EXPECT_EQ(warnings(file),
            "row_sums: 1 of 4 rows hold nothing but zeros\n"
            "row_sums: 1 of 4 rows do not sum to 1 (worst 1.5, query 6 \"sat\")");
  EXPECT_EQ(head_report(file, 0, 0, 0).statistics.worst_row, 6);
}

TEST(AttentionStats, RowsOfZerosAreReported) {
  const AttentionFile file = file_of(4, 4, [](Index, Index) { return 0; });
  EXPECT_EQ(warnings(file), "row_sums: 4 of 4 rows hold nothing but zeros");
  EXPECT_EQ(head_report(file, 0, 0, 0).statistics.entropy, 0);
}

TEST(AttentionStats, RowsThatDoNotSumToOne) {
  EXPECT_EQ(warnings(file_of(
                         4, 4, [](Index i, Index j) { return uneven(i, j); }, Rows::kRaw))
                .substr(0, 45),
            "row_sums: 4 of 4 rows do not sum to 1 (worst ");
  AttentionFile file = file_of(
      4, 4,
      [](Index i, Index j) {
        const double w[] = {0.1, 0.2, 0.3, 0.4};
        return w[(i + j) % 4] * (i == 2 ? 0.5 : 1);
      },
      Rows::kRaw);
  file.tgt = {{"the", "cat", "sat", "down"}};
  EXPECT_EQ(warnings(file), "row_sums: 1 of 4 rows do not sum to 1 (worst 0.5, query 2 \"sat\")");
  const HeadStatistics head = head_report(file, 0, 0, 0).statistics;
  EXPECT_EQ(head.wrong_rows, 1);
  EXPECT_EQ(head.worst_row, 2);
  EXPECT_NEAR(head.worst_sum, 0.5, 1e-6);
}

TEST(AttentionStats, TransposedMapsAreNamed) {
  const AttentionFile rows = file_of(5, 4, uneven);
  AttentionFile file;
  file.attn_memory = contiguous(transpose(rows.attn, 3, 4));
  file.attn = file.attn_memory.view();
  EXPECT_NE(warnings(file).find("transposed: 4 of 4 rows do not sum to 1"), std::string::npos);
  EXPECT_NE(warnings(file).find("the columns do: transposed?"), std::string::npos);
}

TEST(AttentionStats, NotANumberAndNegative) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(
      warnings(file_of(
          3, 3, [nan](Index i, Index j) { return i == 1 && j == 2 ? nan : 1.0 / 3; }, Rows::kRaw)),
      "not_finite: 1 of 3 rows hold NaN or infinity");
  EXPECT_NE(warnings(file_of(
                         3, 3, [](Index i, Index j) { return i == j ? 2 : -0.5; }, Rows::kRaw))
                .find("negative: 3 of 3 rows have negative weights: scores, saved before"),
            std::string::npos);
}

TEST(AttentionStats, PaddingReceivesWeight) {
  AttentionFile file = file_of(5, 5, uneven);
  file.src = {{"[CLS]", "hi", "[SEP]", "[PAD]", "[PAD]"}};
  file.tgt = file.src;
  EXPECT_TRUE(warnings(file).starts_with("padding: padding receives weight in 3 of 3 rows (most "))
      << warnings(file);
  AttentionFile good = file_of(5, 5, [](Index i, Index j) { return j < 3 ? uneven(i, j) : 0; });
  good.src = file.src;
  good.tgt = file.src;
  EXPECT_EQ(warnings(good), "");
}

TEST(AttentionStats, PaddingRowsAreLeftOut) {
  // The first padding row has negative numbers; the second padding row attends to padding.
  AttentionFile file = file_of(
      6, 6,
      [](Index i, Index j) {
        if (i >= 4) return i == 4 ? -3.0 : j == 5 ? 1.0 : 0.0;
        return j == 1 ? 0.7 : j < 4 ? 0.1 : 0.0;
      },
      Rows::kRaw);
  file.src = {{"[CLS]", "a", "b", "[SEP]", "[PAD]", "[PAD]"}};
  file.tgt = file.src;
  EXPECT_EQ(warnings(file), "");
  const HeadStatistics head = head_report(file, 0, 0, 0).statistics;
  EXPECT_EQ(head.rows, 4);
  EXPECT_EQ(head.padding_rows, 2);
  EXPECT_NEAR(head.entropy, -0.7 * std::log(0.7) - 0.3 * std::log(0.1), 1e-6);
  EXPECT_EQ(head.top_key, 1);
  EXPECT_NEAR(head.top_weight, 0.7, 1e-6);
  // A mask alone, without tokens, excludes the same rows.
  file.src.clear();
  file.tgt.clear();
  set_mask(file, [](Index i, Index j) { return i < 4 && j < 4; });
  EXPECT_EQ(warnings(file), "");
  EXPECT_EQ(head_report(file, 0, 0, 0).statistics.padding_rows, 2);
}

TEST(AttentionStats, TheKeyThatReceivesMost) {
  const AttentionFile none = file_of(2, 3, [](Index, Index) { return 0; });
  EXPECT_EQ(head_report(none, 0, 0, 0).statistics.top_key, -1);
  const AttentionFile file = file_of(
      2, 3, [](Index i, Index j) { return j == 2   ? 0.5
                                          : j == i ? 0.5
                                                   : 0.0; }, Rows::kRaw);
  const HeadStatistics head = head_report(file, 0, 0, 0).statistics;
  EXPECT_EQ(head.top_key, 2);
  EXPECT_NEAR(head.top_weight, 0.5, 1e-9);
}

TEST(AttentionStats, MaskedPairsReceiveWeight) {
  AttentionFile file = file_of(6, 6, uneven);
  set_mask(file, [](Index i, Index j) { return j <= i; });
  EXPECT_TRUE(warnings(file).starts_with("masked: masked pairs receive weight in 5 of 6 rows"))
      << warnings(file);
  AttentionFile good = file_of(6, 6, causal);
  set_mask(good, [](Index i, Index j) { return j <= i; });
  EXPECT_EQ(warnings(good), "");
}

TEST(AttentionStats, OneKeyHasEverything) {
  const auto collapsed = [](Index, Index j) { return j == 2 ? 99.0 : 1.0 / 9; };
  EXPECT_EQ(warnings(file_of(6, 6, collapsed)), "one_key: every row gives more than 90 % to key 2");
  // Rows with one unmasked key do not count.
  AttentionFile forced = file_of(6, 6, [](Index, Index j) { return j == 2 ? 1 : 0; });
  set_mask(forced, [](Index, Index j) { return j == 2; });
  EXPECT_EQ(warnings(forced), "");
  // One row of six attends to another key.
  EXPECT_EQ(warnings(file_of(6, 6, [](Index i, Index j) { return j == (i == 5 ? 3 : 2) ? 1 : 0; })),
            "");
}

TEST(AttentionStats, OffByOne) {
  const auto shifted = [](Index by) {
    return file_of(8, 8, [by](Index i, Index j) {
      const Index key = std::clamp<Index>(i + by, 0, 7);
      return uneven(i, j) + (j == key ? 9 : 0);
    });
  };
  EXPECT_EQ(warnings(shifted(1)),
            "next_key: off by one? 7 of 7 rows attend most to the next key, j = i + 1");
  EXPECT_EQ(warnings(shifted(-1)),
            "previous_key: off by one? 7 of 7 rows attend most to the previous key, j = i - 1");
  EXPECT_EQ(warnings(shifted(0)), "");
  EXPECT_EQ(warnings(shifted(2)), "");
}

TEST(AttentionStats, CausalMapThatSeesTheNextKey) {
  const auto leaky = [](Index i, Index j) { return j <= i + 1 ? uneven(i, j) : 0; };
  EXPECT_TRUE(warnings(file_of(8, 8, leaky))
                  .starts_with("leak: causal except for one: 7 of 7 rows attend to the next key"))
      << warnings(file_of(8, 8, leaky));
}

TEST(AttentionStats, UniformRows) {
  EXPECT_EQ(warnings(file_of(5, 5, [](Index, Index) { return 1; })),
            "uniform: 5 of 5 rows attend to all keys equally: equal weights on up to 5 keys");
  EXPECT_EQ(warnings(file_of(5, 5, [](Index i, Index j) { return j <= i ? 1 : 0; })),
            "uniform: 4 of 4 rows attend to all keys equally: equal weights on up to 5 keys");
}

TEST(AttentionStats, EveryHeadInOrder) {
  AttentionFile file;
  file.attn_memory = Tensor(DType::kFloat32, {2, 3, 4, 2, 2});
  file.attn = file.attn_memory.view();
  const std::vector<HeadReport> reports = attention_statistics(file);
  ASSERT_EQ(reports.size(), 24U);
  const HeadStatistics& head = reports[1 * 12 + 2 * 4 + 3].statistics;
  EXPECT_EQ(head.example, 1);
  EXPECT_EQ(head.layer, 2);
  EXPECT_EQ(head.head, 3);
  EXPECT_THROW(head_report(file, 0, 0, 4), Error);
  EXPECT_THROW(head_report(file, -1, 0, 0), Error);
}

TEST(SpecialTokens, CompareWithoutCase) {
  for (const char* token : {"[CLS]", "[sep]", "<PAD>", "</s>", "<|endoftext|>", ""}) {
    EXPECT_TRUE(is_special(token)) << token;
  }
  for (const char* token : {"cat", "<unk>", "[MASK]", "[PAD", "s", "."}) {
    EXPECT_FALSE(is_special(token)) << token;
  }
  EXPECT_TRUE(is_padding("<PAD>") && is_padding("") && !is_padding("[CLS]"));
}

}  // namespace
}  // namespace qkv::app
