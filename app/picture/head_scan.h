// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_HEAD_SCAN_H_
#define QKV_PICTURE_HEAD_SCAN_H_

#include <span>
#include <string>
#include <vector>

#include <qkv/app/attention_stats.h>

namespace qkv::app::picture {

// The facts about one map besides its weights.
struct MapFacts {
  Index queries = 0;
  Index keys = 0;
  double tolerance = 0;                    // largest accepted difference of a row's sum from 1
  bool has_mask = false;                   // whether each row comes with its mask
  std::span<const Index> rows = {};        // the query of each row; empty if row i is query i
  const Tokens* src = {};                  // tokens of the keys; null if the file has none
  const Tokens* tgt = {};                  // tokens of the queries; null if the file has none
  std::vector<char> padding = {};          // [keys], 1 for padding; empty without src
  std::vector<char> padding_queries = {};  // [queries], 1 for padding; empty without tgt
};

// Weights that should be 0 but are not.
struct Leaks {
  Index rows = 0;      // rows that have such a weight
  double largest = 0;  // the largest such weight
  Index row = -1;      // the row of the largest
  Index key = -1;      // the key of the largest
};

// The number of rows that match a pattern, out of those that could.
struct Pattern {
  Index eligible = 0;
  Index fitting = 0;
  // Whether at least `least` rows are eligible and more than 90 % of them match.
  bool holds(Index least) const { return eligible >= least && 10 * fitting > 9 * eligible; }
};

// Scans one map row by row for its statistics and the usual faults, in O(keys) memory.
class HeadScan {
 public:
  explicit HeadScan(MapFacts facts);

  // Takes the next row: its weights [keys], and its mask [keys], false where masked (empty without
  // a mask).
  void add(std::span<const double> weights, std::span<const bool> allowed);
  // The report after the last row; `place` is the map's example, layer and head.
  HeadReport report(const Dims& place) const;

 private:
  void add_row(std::span<const double> weights, std::span<const bool> allowed);
  void add_numbers(std::span<const double> weights, double sum);
  void add_leaks(std::span<const double> weights, std::span<const bool> allowed);
  void add_patterns(std::span<const double> weights, std::span<const bool> allowed);
  void add_one_key(std::span<const double> weights, std::span<const bool> allowed);
  void add_neighbours(std::span<const double> weights);
  void add_causal(std::span<const double> weights);
  bool is_padding_row(std::span<const bool> allowed) const;
  bool is_open(Index key, std::span<const bool> allowed) const;

  void say(HeadReport& report, Fault fault, std::string text) const;
  void say_numbers(HeadReport& report) const;
  void say_sums(HeadReport& report) const;
  void say_leaks(HeadReport& report, Fault fault, const Leaks& leaks) const;
  void say_patterns(HeadReport& report) const;
  Index query_of(Index row) const;
  std::string query_name(Index row) const;
  std::string key_name(Index key) const;

  MapFacts facts_;
  HeadStatistics sums_{};  // its means are sums until report()
  Index row_ = 0;
  Index summing_ = 0;                  // number of rows that the means are over
  std::vector<double> column_sums_{};  // over all rows
  std::vector<double> key_sums_{};     // over the rows that the means are over
  Leaks masked_{};
  Leaks padding_{};
  Index one_key_ = -1;  // the key that gets nearly all weight in every row so far; -1 at first
  Index one_key_rows_ = 0;
  bool one_key_failed_ = false;
  Pattern next_{};
  Pattern previous_{};
  Pattern uniform_{};
  Index widest_uniform_ = 0;
  bool sees_beyond_next_ = false;  // whether there is a weight at j > i + 1
  Pattern lower_{};                // query-key pairs at j <= i - 2 that have weight
  Leaks next_leaks_{};
};

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_HEAD_SCAN_H_
