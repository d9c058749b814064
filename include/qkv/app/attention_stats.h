// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_STATS_H_
#define QKV_APP_ATTENTION_STATS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/attention_file.h>
#include <qkv/export.h>

namespace qkv::app {

// Statistics of one head of one layer of one example. Means are over the head's rows of finite
// weights that are not all 0, and weights are not divided by their row's sum. Padding rows (the
// query is a padding token, or all its keys are masked) count in no member but `padding_rows`.
struct HeadStatistics {
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  double entropy = 0;    // mean of -sum w ln w, in nats
  double distance = 0;   // mean of sum w |i - j|, in positions
  double first_key = 0;  // mean weight of key 0
  // The key with the largest mean weight; the first one in a tie; -1 if the means have no rows.
  Index top_key = -1;
  double top_weight = 0;
  Index rows = 0;           // all rows but the padding rows
  Index padding_rows = 0;   // rows that are excluded, not counted in `rows`
  Index zero_rows = 0;      // rows with only zero weights
  Index nan_rows = 0;       // rows with NaN or infinity
  Index negative_rows = 0;  // finite rows with a weight below 0
  Index wrong_rows = 0;     // rows in the means whose sum differs from 1 by more than the tolerance
  double worst_sum = 1;     // the sum farthest from 1 among the wrong rows
  Index worst_row = -1;     // query index of the worst sum; -1 if no row is wrong
};

// The faults that a report warns of.
enum class Fault {
  kNotFinite,    // weights are NaN or infinity
  kNegative,     // weights are negative: scores instead of weights
  kRowSums,      // rows do not sum to 1
  kTransposed,   // rows do not sum to 1, but columns do
  kMasked,       // masked query-key pairs receive weight
  kPadding,      // padding tokens receive weight
  kOneKey,       // one key receives nearly all weight
  kNextKey,      // rows attend most to the next key, j = i + 1
  kPreviousKey,  // rows attend most to the previous key, j = i - 1
  kLeak,         // a causal map attends to the next key
  kUniform,      // rows attend to all keys equally
};

struct Warning {
  Fault fault = Fault::kNotFinite;
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  std::string text{};  // one line that says what is wrong in that head
};

// The fault's name in JSON, such as "padding".
QKV_API std::string_view name_of(Fault fault);

struct HeadReport {
  HeadStatistics statistics{};
  std::vector<Warning> warnings{};
};

// The allowed difference of a row's sum from 1: 1e-4 for float32 and float64, 1e-2 for two-byte
// types.
QKV_API double row_sum_tolerance(DType dtype);

// The report of one head. Each row is read once, with O(Tk) memory. Throws Error for an index out
// of range.
QKV_API HeadReport head_report(const AttentionFile& file, Index example, Index layer, Index head);

// The reports of all heads, ordered by example, layer, head.
QKV_API std::vector<HeadReport> attention_statistics(const AttentionFile& file);

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_STATS_H_
