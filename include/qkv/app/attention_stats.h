// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_STATS_H_
#define QKV_APP_ATTENTION_STATS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/attention_file.h>
#include <qkv/export.h>

namespace qkv::app {

// One head of one layer of one example. Means are over its rows that sum to something, taken as
// they stand: nothing is divided by a row's sum. Rows of padding (the query is a padding token, or
// the mask leaves it no key) are left out of everything.
struct HeadStatistics {
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  double entropy = 0;    // -sum w ln w, nats
  double distance = 0;   // sum w |i - j|, positions
  double first_key = 0;  // weight of key 0
  Index top_key = -1;    // that receives most weight, the first of equals; -1: none
  double top_weight = 0;
  Index rows = 0;
  Index padding_rows = 0;   // left out, not among `rows`
  Index zero_rows = 0;      // all weights 0: nothing to attend to
  Index nan_rows = 0;       // with NaN or infinity
  Index negative_rows = 0;  // the others with a weight below 0
  Index wrong_rows = 0;     // of those with a sum, which differs from 1 by more than the tolerance
  double worst_sum = 1;     // the sum farthest from 1 among them
  Index worst_row = -1;     // its query; -1: none
};

// The list of usual faults.
enum class Fault {
  kNotFinite,   // NaN or infinity
  kNegative,    // scores in place of weights
  kRowSums,     // rows that do not sum to 1
  kTransposed,  // columns that do
  kMasked,      // masked pairs receive weight
  kPadding,     // padding tokens receive weight
  kOneKey,      // one key has nearly everything
  kNextKey,     // rows look one place to the right of themselves
  kPreviousKey,
  kLeak,     // a causal map that sees the next key
  kUniform,  // rows that attend to everything alike
};

struct Warning {
  Fault fault = Fault::kNotFinite;
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  std::string text{};  // one line that says what is wrong; where stands in the members above
};

// "padding", for JSON.
QKV_API std::string_view name_of(Fault fault);

struct HeadReport {
  HeadStatistics statistics{};
  std::vector<Warning> warnings{};
};

// Weights in float32 and float64 may miss 1 by 1e-4, those of two bytes by 1e-2.
QKV_API double row_sum_tolerance(DType dtype);

// One head: each row is read once, memory follows Tk. Throws Error for an index out of range.
QKV_API HeadReport head_report(const AttentionFile& file, Index example, Index layer, Index head);

// All heads, by example, layer, head.
QKV_API std::vector<HeadReport> attention_statistics(const AttentionFile& file);

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_STATS_H_
