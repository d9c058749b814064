// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_STATS_H_
#define QKV_APP_ATTENTION_STATS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/attention_file.h>
#include <qkv/export.h>

namespace qkv::app {

// One head of one layer of one example. Means are over its rows with a nonzero sum, without
// normalising: nothing is divided by a row's sum. Rows of padding (the query is a padding token, or
// fully masked) are left out of everything.
struct HeadStatistics {
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  double entropy = 0;    // -sum w ln w, nats
  double distance = 0;   // sum w |i - j|, positions
  double first_key = 0;  // weight of key 0
  Index top_key = -1;    // receives most weight; the first in a tie; -1: none
  double top_weight = 0;
  Index rows = 0;
  Index padding_rows = 0;   // left out, not among `rows`
  Index zero_rows = 0;      // all weights 0: nothing to attend to
  Index nan_rows = 0;       // with NaN or infinity
  Index negative_rows = 0;  // the others with a weight below 0
  Index wrong_rows = 0;     // nonzero sum that differs from 1 by more than the tolerance
  double worst_sum = 1;     // the sum farthest from 1 among them
  Index worst_row = -1;     // its query; -1: none
};

// The list of usual faults.
enum class Fault {
  kNotFinite,   // NaN or infinity
  kNegative,    // scores instead of weights
  kRowSums,     // rows that do not sum to 1
  kTransposed,  // columns that do
  kMasked,      // masked pairs receive weight
  kPadding,     // padding tokens receive weight
  kOneKey,      // one key has nearly everything
  kNextKey,     // rows look one place to the right of themselves
  kPreviousKey,
  kLeak,     // a causal map that sees the next key
  kUniform,  // rows that attend to everything equally
};

struct Warning {
  Fault fault = Fault::kNotFinite;
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  std::string text{};  // one line that says what is wrong; the members above say where
};

// "padding", for JSON.
QKV_API std::string_view name_of(Fault fault);

struct HeadReport {
  HeadStatistics statistics{};
  std::vector<Warning> warnings{};
};

// Row sums of float32 and float64 may differ from 1 by 1e-4, those of two-byte types by 1e-2.
QKV_API double row_sum_tolerance(DType dtype);

// One head: each row is read once, with O(Tk) memory. Throws Error for an index out of range.
QKV_API HeadReport head_report(const AttentionFile& file, Index example, Index layer, Index head);

// All heads, by example, layer, head.
QKV_API std::vector<HeadReport> attention_statistics(const AttentionFile& file);

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_STATS_H_
