// SPDX-License-Identifier: Apache-2.0
#include "picture/head_scan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace qkv::app::picture {
namespace {

// Weights up to this one count as 0: they are rounding residue, far below any weight that matters.
constexpr double kNothing = 1e-6;
constexpr double kNearlyAll = 0.9;
// Weights that differ by at most this fraction count as equal, since rounding makes equal weights
// differ: by up to 2^-10 for float16.
constexpr double kAlike = 1e-3;

void note(Leaks& leaks, double weight, Index row, Index key) {
  if (weight <= leaks.largest) return;
  leaks.largest = weight;
  leaks.row = row;
  leaks.key = key;
}

}  // namespace

HeadScan::HeadScan(MapFacts facts) : facts_(std::move(facts)) {
  column_sums_.resize(static_cast<std::size_t>(facts_.keys));
  key_sums_.resize(column_sums_.size());
}

Index HeadScan::query_of(Index row) const {
  return facts_.rows.empty() ? row : facts_.rows[static_cast<std::size_t>(row)];
}

// Whether the current row's weights do not matter: its query is padding, or all its keys are
// masked.
bool HeadScan::is_padding_row(std::span<const bool> allowed) const {
  if (!facts_.padding_queries.empty() &&
      facts_.padding_queries[static_cast<std::size_t>(row_)] != 0) {
    return true;
  }
  return !allowed.empty() && std::none_of(allowed.begin(), allowed.end(), std::identity());
}

void HeadScan::add(std::span<const double> weights, std::span<const bool> allowed) {
  for (std::size_t j = 0; j < weights.size(); ++j) column_sums_[j] += weights[j];
  if (is_padding_row(allowed)) {
    ++sums_.padding_rows;
  } else {
    ++sums_.rows;
    add_row(weights, allowed);
  }
  ++row_;
}

void HeadScan::add_row(std::span<const double> weights, std::span<const bool> allowed) {
  double sum = 0;
  bool zero = true;
  bool negative = false;
  bool finite = true;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    sum += weights[j];
    zero = zero && weights[j] == 0;
    negative = negative || weights[j] < 0;
    finite = finite && std::isfinite(weights[j]);
  }
  if (!finite) {
    ++sums_.nan_rows;
  } else if (zero) {
    ++sums_.zero_rows;
  } else {
    if (negative) ++sums_.negative_rows;
    add_numbers(weights, sum);
    add_leaks(weights, allowed);
    add_patterns(weights, allowed);
  }
}

void HeadScan::add_numbers(std::span<const double> weights, double sum) {
  ++summing_;
  double entropy = 0;
  double distance = 0;
  const Index query = query_of(row_);
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] > 0) entropy -= weights[j] * std::log(weights[j]);
    key_sums_[j] += weights[j];
    distance += weights[j] * static_cast<double>(std::abs(query - static_cast<Index>(j)));
  }
  sums_.entropy += entropy;
  sums_.distance += distance;
  sums_.first_key += weights[0];
  if (std::abs(sum - 1) <= facts_.tolerance) return;
  ++sums_.wrong_rows;
  if (sums_.worst_row < 0 || std::abs(sum - 1) > std::abs(sums_.worst_sum - 1)) {
    sums_.worst_sum = sum;
    sums_.worst_row = row_;
  }
}

bool HeadScan::is_open(Index key, std::span<const bool> allowed) const {
  const auto j = static_cast<std::size_t>(key);
  return (allowed.empty() || allowed[j]) && (facts_.padding.empty() || facts_.padding[j] == 0);
}

// Notes weights of masked query-key pairs and of padding keys. Each pair counts once: a masked
// padding key is a masked pair.
void HeadScan::add_leaks(std::span<const double> weights, std::span<const bool> allowed) {
  bool masked = false;
  bool padding = false;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] <= kNothing || is_open(static_cast<Index>(j), allowed)) continue;
    const bool by_mask = !allowed.empty() && !allowed[j];
    (by_mask ? masked : padding) = true;
    note(by_mask ? masked_ : padding_, weights[j], row_, static_cast<Index>(j));
  }
  masked_.rows += masked ? 1 : 0;
  padding_.rows += padding ? 1 : 0;
}

void HeadScan::add_patterns(std::span<const double> weights, std::span<const bool> allowed) {
  add_one_key(weights, allowed);
  add_neighbours(weights);
  add_causal(weights);
  double smallest = 0;
  double largest = 0;
  Index count = 0;
  for (const double w : weights) {
    if (w <= 0) continue;
    smallest = count == 0 ? w : std::min(smallest, w);
    largest = std::max(largest, w);
    ++count;
  }
  if (count < 2) return;
  ++uniform_.eligible;
  if (largest > smallest * (1 + kAlike)) return;
  ++uniform_.fitting;
  widest_uniform_ = std::max(widest_uniform_, count);
}

// Notes whether all rows give nearly everything to the same key. A row counts if two or more of its
// keys are neither masked nor padding.
void HeadScan::add_one_key(std::span<const double> weights, std::span<const bool> allowed) {
  if (one_key_failed_) return;
  Index open = 0;
  for (Index j = 0; j < facts_.keys && open < 2; ++j) open += is_open(j, allowed) ? 1 : 0;
  if (open < 2) return;
  const auto largest = std::max_element(weights.begin(), weights.end());
  const Index key = largest - weights.begin();
  one_key_failed_ = *largest <= kNearlyAll || (one_key_rows_ > 0 && key != one_key_);
  one_key_ = key;
  ++one_key_rows_;
}

// Counts the rows whose largest weight is on the next or on the previous key, in square maps. A row
// is eligible if that key exists; a tie for the largest weight does not match. Maps whose file
// gives `rows` are left out, since the whole map may not be square.
void HeadScan::add_neighbours(std::span<const double> weights) {
  if (facts_.queries != facts_.keys || !facts_.rows.empty()) return;
  const auto largest = std::max_element(weights.begin(), weights.end());
  const bool tie = std::find(largest + 1, weights.end(), *largest) != weights.end();
  const Index key = largest - weights.begin();
  if (row_ + 1 < facts_.keys) {
    ++next_.eligible;
    next_.fitting += !tie && key == row_ + 1 ? 1 : 0;
  }
  if (row_ > 0) {
    ++previous_.eligible;
    previous_.fitting += !tie && key == row_ - 1 ? 1 : 0;
  }
}

// Looks for a map that is causal except for weights at j = i + 1. The weights at j <= i - 2 are
// counted as well, to rule out narrow windows, which have few there.
void HeadScan::add_causal(std::span<const double> weights) {
  if (facts_.queries != facts_.keys || facts_.has_mask || !facts_.rows.empty()) return;
  for (Index j = 0; j < facts_.keys; ++j) {
    const bool weight = weights[static_cast<std::size_t>(j)] > kNothing;
    if (j <= row_ - 2) {
      ++lower_.eligible;
      lower_.fitting += weight ? 1 : 0;
    }
    sees_beyond_next_ = sees_beyond_next_ || (weight && j > row_ + 1);
    if (weight && j == row_ + 1) {
      ++next_leaks_.rows;
      note(next_leaks_, weights[static_cast<std::size_t>(j)], row_, j);
    }
  }
}

HeadReport HeadScan::report(const Dims& place) const {
  HeadReport report{sums_, {}};
  report.statistics.example = place[0];
  report.statistics.layer = place[1];
  report.statistics.head = place[2];
  if (sums_.worst_row >= 0) report.statistics.worst_row = query_of(sums_.worst_row);
  if (summing_ > 0) {
    for (double* mean :
         {&report.statistics.entropy, &report.statistics.distance, &report.statistics.first_key}) {
      *mean /= static_cast<double>(summing_);
    }
    const auto top = std::max_element(key_sums_.begin(), key_sums_.end());
    report.statistics.top_key = top - key_sums_.begin();
    report.statistics.top_weight = *top / static_cast<double>(summing_);
  }
  say_numbers(report);
  say_sums(report);
  say_leaks(report, Fault::kMasked, masked_);
  say_leaks(report, Fault::kPadding, padding_);
  if (sums_.negative_rows == 0 && sums_.nan_rows == 0) say_patterns(report);
  return report;
}

}  // namespace qkv::app::picture
