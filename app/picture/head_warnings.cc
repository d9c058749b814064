// SPDX-License-Identifier: Apache-2.0
// The texts of the warnings that a scan of one map gives.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "picture/head_scan.h"

namespace qkv::app::picture {
namespace {

// The fewest rows and keys for which patterns are reported; fewer may match by chance.
constexpr Index kFewRows = 3;
constexpr Index kSomeRows = 4;
constexpr Index kManyKeys = 4;
constexpr std::size_t kLongestToken = 16;  // code points

// The name of a query or key in messages, such as 'query 3 "cat"'. `at` is the place of its token,
// which differs from the index if the file has only some of the queries.
std::string named(std::string_view axis, Index index, const Tokens* tokens, Index at) {
  std::string text = fmt::format("{} {}", axis, index);
  if (tokens != nullptr) {
    text += " " + quoted((*tokens)[static_cast<std::size_t>(at)], kLongestToken);
  }
  return text;
}

}  // namespace

std::string HeadScan::query_name(Index row) const {
  return named("query", query_of(row), facts_.tgt, row);
}
std::string HeadScan::key_name(Index key) const { return named("key", key, facts_.src, key); }

void HeadScan::say(HeadReport& report, Fault fault, std::string text) const {
  const HeadStatistics& at = report.statistics;
  report.warnings.push_back({fault, at.example, at.layer, at.head, std::move(text)});
}

void HeadScan::say_numbers(HeadReport& report) const {
  if (sums_.nan_rows > 0) {
    say(report, Fault::kNotFinite,
        fmt::format("{} of {} rows hold NaN or infinity", sums_.nan_rows, sums_.rows));
  }
  if (sums_.negative_rows > 0) {
    say(report, Fault::kNegative,
        fmt::format("{} of {} rows have negative weights: scores, saved before the softmax?",
                    sums_.negative_rows, sums_.rows));
  }
}

void HeadScan::say_sums(HeadReport& report) const {
  // Rows that the file's mask makes zero have been excluded.
  if (sums_.zero_rows > 0) {
    say(report, Fault::kRowSums,
        fmt::format("{} of {} rows hold nothing but zeros", sums_.zero_rows, sums_.rows));
  }
  if (sums_.wrong_rows == 0) return;
  const bool columns = std::all_of(column_sums_.begin(), column_sums_.end(), [this](double sum) {
    return std::abs(sum - 1) <= facts_.tolerance;
  });
  say(report, columns ? Fault::kTransposed : Fault::kRowSums,
      fmt::format("{} of {} rows do not sum to 1 (worst {:.4g}, {}){}", sums_.wrong_rows,
                  sums_.rows, sums_.worst_sum, query_name(sums_.worst_row),
                  columns ? "; the columns do: transposed?" : ""));
}

void HeadScan::say_leaks(HeadReport& report, Fault fault, const Leaks& leaks) const {
  if (leaks.rows == 0) return;
  say(report, fault,
      fmt::format("{} weight in {} of {} rows (most {:.4g}, {}, {})",
                  fault == Fault::kMasked ? "masked pairs receive" : "padding receives", leaks.rows,
                  sums_.rows, leaks.largest, query_name(leaks.row), key_name(leaks.key)));
}

void HeadScan::say_patterns(HeadReport& report) const {
  if (!one_key_failed_ && one_key_rows_ >= kFewRows && facts_.keys >= kManyKeys) {
    say(report, Fault::kOneKey,
        fmt::format("every row gives more than 90 % to {}", key_name(one_key_)));
  }
  if (next_.holds(kSomeRows)) {
    say(report, Fault::kNextKey,
        fmt::format("off by one? {} of {} rows attend most to the next key, j = i + 1",
                    next_.fitting, next_.eligible));
  }
  if (previous_.holds(kSomeRows)) {
    say(report, Fault::kPreviousKey,
        fmt::format("off by one? {} of {} rows attend most to the previous key, j = i - 1",
                    previous_.fitting, previous_.eligible));
  }
  const bool lower = 2 * lower_.fitting > lower_.eligible;
  const Index rows = next_.eligible;  // rows with a next key
  if (rows + 1 >= kSomeRows && !sees_beyond_next_ && lower && 2 * next_leaks_.rows > rows) {
    say(report, Fault::kLeak,
        fmt::format("causal except for one: {} of {} rows attend to the next key, j = i + 1, and "
                    "none beyond (most {:.4g}, {})",
                    next_leaks_.rows, rows, next_leaks_.largest, query_name(next_leaks_.row)));
  }
  if (uniform_.holds(1) && widest_uniform_ >= kFewRows) {
    say(report, Fault::kUniform,
        fmt::format("{} of {} rows attend to all keys equally: equal weights on up to {} keys",
                    uniform_.fitting, uniform_.eligible, widest_uniform_));
  }
}

}  // namespace qkv::app::picture
