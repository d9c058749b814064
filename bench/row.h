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

// The meaning of a row's figure, the number that its target is about.
enum class Figure {
  kPeakShare,      // the rate as a share of the multiply-add peak
  kReadShare,      // the rate as a share of a plain read of the same bytes
  kThreadShare,    // the share of all threads' peak, relative to the share of one thread's
  kPerMultiply,    // multiply-adds per second, relative to another width
  kPlainRatio,     // the time relative to the same call without the option
  kHarmlessRatio,  // the time relative to the same call with scores close together
  kUnitRate,       // units of an additive score per second: B H Tq Tk U over the time
  kRateShare,      // units per second, relative to a large call's
  kSeconds,        // the seconds of a call
};
// Whether a target is a lower bound, as for rates, or an upper bound, as for times.
enum class Aim { kAtLeast, kAtMost };
// The form of a figure in reports.
struct Form {
  std::string_view key, of;           // the key in JSON; the text after the value: "of the peak"
  std::string (*text)(double value);  // the value as text
  Aim aim;
  std::string_view rate_unit = "GFLOP/s";
};
Form form_of(Figure figure);
// A time with its unit: "1.25 ms".
std::string seconds_text(double seconds);

enum class Verdict {
  kNone,    // there is no target, or no figure
  kMet,     // the figure reaches the target
  kMissed,  // the figure does not reach the target
  kNoisy,   // there is no figure, since the base or the ratio spreads too much
  kWrong,   // the result differs from the reference's, and nothing was timed
};

// The time of a peer, another library's code, for a row's problem, measured in the same rounds.
struct PeerTime {
  std::string name{};
  std::string form{};  // the variant in one word, if the peer has several
  double median = 0;   // seconds of a call
  double ratio = 0;    // the peer's time over the row's
  double spread = 0;   // the spread of the ratio
};

// A measured call.
struct Row {
  std::string name{};  // "forward/T2048-D64"
  std::string path{};  // the implementation: "dot/avx512"
  int threads = 1;
  Clock clock = Clock::kWall;
  Summary time{};   // the time of a call
  double work = 0;  // floating-point operations, bytes, or units of scores of a call
  Figure figure = Figure::kSeconds;
  std::optional<double> value{};
  std::optional<double> target{};
  Summary base{};            // the time of what the call is compared with: a peak or a call
  double base_work = 0;      // the work of a repetition of the base
  double figure_spread = 0;  // the spread of ratios taken round by round, or the median's error
  std::size_t scratch = 0;   // bytes of scratch memory
  double matrix = 0;         // bytes of the full matrix of scores, or of the array of tanh
  std::string note{};
  std::string fault{};  // the first difference from the reference; "" if there is none
  std::vector<PeerTime> peers{};
};

Verdict verdict_of(const Row& row);

}  // namespace qkv::bench

#endif  // QKV_BENCH_ROW_H_
