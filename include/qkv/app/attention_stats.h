// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ATTENTION_STATS_H_
#define QKV_APP_ATTENTION_STATS_H_

#include <string>
#include <vector>

#include <qkv/app/attention_file.h>
#include <qkv/export.h>

namespace qkv::app {

// One head of one layer of one example. Means are over its rows that sum to something.
struct HeadStatistics {
  Index example = 0;
  Index layer = 0;
  Index head = 0;
  double entropy = 0;    // -sum w ln w, nats
  double distance = 0;   // sum w |i - j|, positions
  double first_key = 0;  // weight of key 0
  Index rows = 0;
  Index zero_rows = 0;  // all weights 0: nothing to attend to
  Index nan_rows = 0;
  Index wrong_rows = 0;  // the others whose sum differs from 1 by more than the tolerance
  double worst_sum = 1;  // the sum farthest from 1 among them
  Index worst_row = -1;  // its query; -1: none
};

// The usual faults, each a line that says what is wrong and where.
struct AttentionStatistics {
  std::vector<HeadStatistics> heads{};
  std::vector<std::string> warnings{};
};

// Weights in float32 may miss 1 by 1e-4, those of two bytes by 1e-2.
QKV_API double row_sum_tolerance(DType dtype);

QKV_API AttentionStatistics attention_statistics(const AttentionFile& file);

}  // namespace qkv::app

#endif  // QKV_APP_ATTENTION_STATS_H_
