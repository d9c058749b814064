// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_MEASURE_H_
#define QKV_BENCH_MEASURE_H_

#include <functional>
#include <span>
#include <vector>

// How time is measured: subjects to compare alternate, in bursts, in one process, so that
// clock drift affects all of them alike.
namespace qkv::bench {

enum class Clock { kWall, kCpu };

// Seconds of one repetition, by both clocks; `cpu` is the calling thread's.
struct Sample {
  double wall = 0;
  double cpu = 0;
};
using Series = std::vector<Sample>;

// A timed subject. One call of `run` is one repetition.
struct Subject {
  std::function<void()> run;
  int least_bursts = 1;
};

struct Effort {
  double burst = 0.02;  // seconds; at least one repetition
  double seconds = 1;   // per row
  int rounds = 5;       // at least
};

// One burst of each subject in turn, round after round, until the time is up. A subject that needs
// more bursts than there are rounds has several in each. One series for each subject.
std::vector<Series> alternate(std::span<const Subject> subjects, const Effort& effort);

// ---- what samples say -----------------------------------------------------------------------

// Of seconds: spread = (best - median) / best of the rates, that is 1 - best / median of the times.
struct Summary {
  int n = 0;
  double best = 0;
  double median = 0;
  double spread = 0;
};

// The middle value, or the mean of the two middle ones; 0 for none.
double median_of(std::vector<double> values);
Summary summarise(const Series& series, Clock clock);

// The clock for which the spreads of these series are smaller in sum; CPU time if wall time is
// longer, since others had the processor too. CPU time says nothing about work on several threads:
// wall time then.
Clock steadier(std::span<const Series> series, int threads);

// If a peak spreads more than this, no share is computed from it.
inline constexpr double kMostPeakSpread = 0.03;
inline bool is_noisy(const Summary& peak) { return peak.spread > kMostPeakSpread; }

// The median over rounds of a's time over b's time in the same round, and half the interquartile
// range relative to it.
struct Ratio {
  double median = 0;
  double spread = 0;
  double error = 0;  // the standard error of the median, if ratios are normal, relative to it
};
Ratio ratio_of(const Series& a, const Series& b, Clock clock);
inline bool is_noisy(const Ratio& ratio) { return ratio.spread > kMostPeakSpread; }

}  // namespace qkv::bench

#endif  // QKV_BENCH_MEASURE_H_
