// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_ROW_H_
#define QKV_BENCH_ROW_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "measure.h"

namespace qkv::bench {

// What the figure of a row is.
enum class Figure {
  kPeakShare,    // of the multiply-add peak
  kReadShare,    // of a plain read of the same bytes
  kThreadShare,  // how the share of the peak of all threads relates to that of one
  kPerMultiply,  // multiply-adds a second, relative to another width
  kPlainRatio,   // the time relative to the same call without the option
  kUnitRate,     // units of an additive score a second: B H Tq Tk U over the time
  kRateShare,    // units a second, relative to a large call's
  kSeconds,      // of a call
};
// Of times less is better, of rates more.
enum class Aim { kAtLeast, kAtMost };
Aim aim_of(Figure figure);

enum class Verdict {
  kNone,    // there is no target, or no figure
  kMet,     //
  kMissed,  //
  kNoisy,   // what the figure is relative to spreads too much: no figure
  kWrong,   // the result differs from the reference's: nothing was timed
};

// What a peer takes for the same problem, in the same rounds.
struct PeerTime {
  std::string name{};
  std::string form{};  // where it has several ways: which; a word
  double median = 0;   // seconds of a call
  double ratio = 0;    // its time over ours
  double spread = 0;   // of the ratio
};

struct Row {
  std::string name{};  // "forward/T2048-D64"
  std::string path{};  // the implementation: "dot/avx512"
  int threads = 1;
  Clock clock = Clock::kWall;
  Summary time{};   // of a call
  double work = 0;  // floating-point operations of a call, or bytes, or units of scores
  Figure figure = Figure::kSeconds;
  std::optional<double> value{};
  std::optional<double> target{};
  Summary base{};            // of what the figure is relative to, per repetition
  double base_work = 0;      // of a repetition of that
  double figure_spread = 0;  // of ratios that are taken round by round
  std::size_t scratch = 0;   // bytes
  double matrix = 0;         // bytes of the full matrix of scores, or array of tanh
  std::string note{};
  std::string fault{};  // "": the result is right
  std::vector<PeerTime> peers{};
};

Verdict verdict_of(const Row& row);

}  // namespace qkv::bench

#endif  // QKV_BENCH_ROW_H_
