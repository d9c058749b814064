// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_ROW_H_
#define QKV_BENCH_ROW_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measure.h"

namespace qkv::bench {

// The meaning of a row's figure.
enum class Figure {
  kPeakShare,      // of the multiply-add peak
  kReadShare,      // of a plain read of the same bytes
  kThreadShare,    // the share of all threads' peak, relative to the share of one thread's
  kPerMultiply,    // multiply-adds per second, relative to another width
  kPlainRatio,     // the time relative to the same call without the option
  kHarmlessRatio,  // the time relative to the same call with scores close together
  kUnitRate,       // units of an additive score per second: B H Tq Tk U over the time
  kRateShare,      // units per second, relative to a large call's
  kSeconds,        // of a call
};
// For times less is better, for rates more.
enum class Aim { kAtLeast, kAtMost };
// How a figure is reported: its key in JSON; in text its value, what it is a share or a multiple
// of, and the unit of a call's work by time.
struct Form {
  std::string_view key, of;
  std::string (*text)(double value);
  Aim aim;
  std::string_view rate_unit = "GFLOP/s";
};
Form form_of(Figure figure);
std::string seconds_text(double seconds);

enum class Verdict {
  kNone,    // there is no target, or no figure
  kMet,     //
  kMissed,  //
  kNoisy,   // the base of the figure spreads too much: no figure
  kWrong,   // the result differs from the reference's: nothing was timed
};

// A peer's time for the same problem, in the same rounds.
struct PeerTime {
  std::string name{};
  std::string form{};  // the variant, if it has several; one word
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
  Summary base{};            // of the base of the figure, per repetition
  double base_work = 0;      // of a repetition of the base
  double figure_spread = 0;  // of ratios computed round by round
  std::size_t scratch = 0;   // bytes
  double matrix = 0;         // bytes of the full matrix of scores, or array of tanh
  std::string note{};
  std::string fault{};  // "": the result is right
  std::vector<PeerTime> peers{};
};

Verdict verdict_of(const Row& row);

}  // namespace qkv::bench

#endif  // QKV_BENCH_ROW_H_
