// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace qkv::bench {
namespace {

double wall_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double cpu_now() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Sample burst(const Subject& subject, long repetitions) {
  const double wall = wall_now();
  const double cpu = cpu_now();
  for (long n = 0; n < repetitions; ++n) subject.run();
  const auto count = static_cast<double>(repetitions);
  return {(wall_now() - wall) / count, (cpu_now() - cpu) / count};
}

// The number of repetitions that fill a burst of `seconds`, found by doubling. The caches are warm
// afterwards.
long repetitions_of(const Subject& subject, double seconds) {
  subject.run();
  long repetitions = 1;
  double taken = burst(subject, 1).wall;
  while (taken * static_cast<double>(repetitions) < seconds / 4) {
    repetitions *= 2;
    taken = burst(subject, repetitions).wall;
  }
  return std::max(1L, std::lround(seconds / taken));
}

double time_of(const Sample& sample, Clock clock) {
  return clock == Clock::kWall ? sample.wall : sample.cpu;
}

}  // namespace

std::vector<Series> alternate(std::span<const Subject> subjects, const Effort& effort) {
  std::vector<long> repetitions;
  double round = 0;  // seconds of a round
  for (const Subject& subject : subjects) {
    repetitions.push_back(repetitions_of(subject, effort.burst));
    round += static_cast<double>(repetitions.back()) * burst(subject, 1).wall;
  }
  constexpr double kMostRounds = 1000;
  const double fitting = round > 0 ? std::min(kMostRounds, effort.seconds / round) : kMostRounds;
  const int rounds = std::max(effort.rounds, static_cast<int>(fitting));
  std::vector<Series> series(subjects.size());
  for (int r = 0; r < rounds; ++r) {
    for (std::size_t s = 0; s < subjects.size(); ++s) {
      const int bursts = (subjects[s].least_bursts + rounds - 1) / rounds;
      for (int b = 0; b < std::max(1, bursts); ++b) {
        series[s].push_back(burst(subjects[s], repetitions[s]));
      }
    }
  }
  return series;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

Summary summarise(const Series& series, Clock clock) {
  std::vector<double> times;
  for (const Sample& sample : series) times.push_back(time_of(sample, clock));
  if (times.empty()) return {};
  const double best = *std::ranges::min_element(times);
  const double median = median_of(times);
  const double spread = median > 0 ? 1 - best / median : 0;
  return {static_cast<int>(times.size()), best, median, spread};
}

Clock steadier(std::span<const Series> series, int threads) {
  if (threads > 1) return Clock::kWall;
  constexpr double kMostApart = 1.01;  // a larger ratio: another process had the processor
  double wall = 0;
  double cpu = 0;
  for (const Series& one : series) {
    const Summary by_wall = summarise(one, Clock::kWall);
    const Summary by_cpu = summarise(one, Clock::kCpu);
    if (by_wall.median > kMostApart * by_cpu.median) return Clock::kCpu;
    wall += by_wall.spread;
    cpu += by_cpu.spread;
  }
  return cpu < wall ? Clock::kCpu : Clock::kWall;
}

Ratio ratio_of(const Series& a, const Series& b, Clock clock) {
  std::vector<double> ratios;
  for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    ratios.push_back(time_of(a[n], clock) / time_of(b[n], clock));
  }
  if (ratios.empty()) return {};
  std::ranges::sort(ratios);
  const double median = median_of(ratios);
  const std::size_t quarter = ratios.size() / 4;
  const double distance = ratios[ratios.size() - 1 - quarter] - ratios[quarter];
  // If ratios are normally distributed, half the interquartile range is 0.6745 standard deviations,
  // and the error of the median is 1.2533 standard deviations over the root of their number.
  const double spread = distance / 2 / median;
  const double error = 1.2533 / 0.6745 * spread / std::sqrt(static_cast<double>(ratios.size()));
  return {median, spread, error};
}

}  // namespace qkv::bench
