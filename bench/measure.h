// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_MEASURE_H_
#define QKV_BENCH_MEASURE_H_

#include <functional>
#include <span>
#include <vector>

// Measuring time: the subjects that are compared run in bursts, alternately, in one process, so
// that clock drift affects all of them alike.
namespace qkv::bench {

enum class Clock { kWall, kCpu };

// The seconds of one repetition: elapsed, and CPU time of the calling thread. A sample is the mean
// over one burst.
struct Sample {
  double wall = 0;
  double cpu = 0;
};
using Series = std::vector<Sample>;

// A function to time. One call of `run` is one repetition.
struct Subject {
  std::function<void()> run;
  int least_bursts = 1;  // the least number of bursts in all rounds together
};

// How long to measure.
struct Effort {
  double burst = 0.02;  // seconds of a burst, which has at least one repetition
  double seconds = 1;   // seconds of all rounds
  int rounds = 5;       // the least number of rounds
};

// Runs one burst of each subject in a round, and rounds until the time is up. A subject that needs
// more bursts than there are rounds has several in each. Returns one series for each subject.
std::vector<Series> alternate(std::span<const Subject> subjects, const Effort& effort);

// ---- statistics of samples ------------------------------------------------------------------

// A summary of a series of times.
struct Summary {
  int n = 0;          // the number of bursts
  double best = 0;    // seconds of a repetition
  double median = 0;  // seconds of a repetition
  double spread = 0;  // (best - median) / best of the rates: 1 - best / median of the times
};

// The median: the middle value, or the mean of the two middle ones; 0 if there are no values.
double median_of(std::vector<double> values);
Summary summarise(const Series& series, Clock clock);

// The clock by which the sum of the spreads of these series is smaller. It is CPU time if wall time
// is longer by more than 1 %, since other processes then had the processor too. It is wall time for
// work on several threads, of which the CPU time of one thread says nothing.
Clock steadier(std::span<const Series> series, int threads);

// The largest spread of a peak, or of a ratio, from which a figure is computed.
inline constexpr double kMostPeakSpread = 0.03;
inline bool is_noisy(const Summary& peak) { return peak.spread > kMostPeakSpread; }

// The ratio of two times. Ratios are taken round by round.
struct Ratio {
  double median = 0;
  double spread = 0;  // half the interquartile range, relative to the median
  double error = 0;   // the median's standard error for normal ratios, relative to the median
};
// The ratio of a's times to b's times in the same rounds.
Ratio ratio_of(const Series& a, const Series& b, Clock clock);
inline bool is_noisy(const Ratio& ratio) { return ratio.spread > kMostPeakSpread; }

}  // namespace qkv::bench

#endif  // QKV_BENCH_MEASURE_H_
