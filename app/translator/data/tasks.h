// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_TASKS_H_
#define QKV_TRANSLATOR_DATA_TASKS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include <qkv/export.h>
#include <qkv/view.h>

// Synthetic tasks to train a translator on. Example n of a task depends only on the seed, n and the
// split of days (Philox4x32-10), so it is equal on every machine and in a corpus of any length.
// date_example() and reverse_example() throw Error for a negative n.
namespace qkv::app {

// A sentence pair of a task.
struct Example {
  std::string source{};
  std::string target{};
};

// The days that a corpus of dates may have. About a tenth of all days are test days, the same ones
// for every seed, so that a model trained on kTrain has never seen a day of kTest.
enum class DaySplit { kAll, kTrain, kTest };
QKV_API bool is_test_day(std::chrono::sys_days day);

// A date task. The source is a day from 1900-01-01 to 2099-12-31, uniformly distributed, as people
// write it in English; the target is YYYY-MM-DD. No spelling is ambiguous: all-numeric dates with
// the year last have the day first (3.5.1987 is in May), those with the year first have the month
// second; years have four digits or are words.
QKV_API Example date_example(std::uint64_t seed, Index n, DaySplit split = DaySplit::kAll);

// A reversal task. The source is 3 to 15 letters a-z, the target those letters in reverse order.
QKV_API Example reverse_example(std::uint64_t seed, Index n);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_TASKS_H_
