// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <qkv/error.h>

#include "check.h"

namespace qkv::bench {
namespace {

Effort effort_of(const Settings& settings, const Wanted& wanted) {
  if (settings.size == Size::kQuick) return {.burst = 0.001, .seconds = 0.02, .rounds = 3};
  return {.burst = 0.02 * wanted.effort, .seconds = settings.seconds * wanted.effort};
}

double rate(double work, double seconds) { return seconds > 0 ? work / seconds : 0; }

Bytes bytes_of(const View& view) {
  const std::size_t size = static_cast<std::size_t>(view.element_count()) * size_of(view.dtype());
  return {static_cast<const std::byte*>(view.data()), size};
}

// Sets results to 0, so that the check finds a call that does not write them.
void clear(const std::vector<View>& results) {
  for (const View& view : results) std::memset(view.data(), 0, bytes_of(view).size());
}

void set_base(const Series& series, double work, Row& row) {
  row.base = summarise(series, row.clock);
  row.base_work = work;
}

// Sets the times of the row's peers. `series` has the row's own call first, then its peers.
void set_peer_times(std::span<const Series> series, Row& row) {
  for (std::size_t n = 0; n < row.peers.size(); ++n) {
    const Series& theirs = series[n + 1];
    const Ratio ratio = ratio_of(theirs, series.front(), row.clock);
    row.peers[n].median = summarise(theirs, row.clock).median;
    row.peers[n].ratio = ratio.median;
    row.peers[n].spread = ratio.spread;
  }
}

}  // namespace

Session::Session(const Settings& settings)
    : settings_(settings),
      threads_(Executor::threads(settings.threads).concurrency()),
      target_(peak_target()) {}

Index Session::length(Index T) const {
  constexpr Index kShortest = 4;
  return is_quick() ? std::max(kShortest, T / 32) : T;
}

Row Session::begin(const Wanted& wanted, Figure figure) const {
  if (settings_.stop != nullptr && settings_.stop->load()) throw Cancelled("bench");
  if (settings_.started) settings_.started(wanted.name);
  Row row;
  row.name = wanted.name;
  row.threads = wanted.threads;
  row.figure = figure;
  if (!is_quick()) row.target = wanted.target;
  return row;
}

Row Session::begin(const Wanted& wanted, Problem& problem, Kernel& kernel, Figure figure) const {
  Row row = begin(wanted, figure);
  row.path = kernel.path();
  row.work = work_of(problem);
  row.scratch = kernel.scratch_bytes();
  row.matrix = array_bytes(problem);
  kernel.run();
  row.fault = fault_of(problem, problem.results());
  return row;
}

void Session::add_peer(Problem& problem, std::vector<Subject>& subjects, Row& row) const {
  if (!row.fault.empty()) return;
  for (const Peer& peer : settings_.peers) {
    std::vector<View> results = problem.results();
    for (View& view : results) view = problem.add(view.dtype(), view.shape());
    const auto run = peer.bind(problem, results, row.threads);
    if (!run) continue;
    run();
    const std::string fault = fault_of(problem, results);
    if (!fault.empty()) {
      row.fault = peer.name + ": " + fault;
      return;
    }
    row.peers = {{.name = peer.name}};
    subjects.push_back({run});
    return;
  }
}

void Session::share_of_peak(const Wanted& wanted, Problem& problem) {
  Kernel kernel(problem, wanted.threads, settings_.stop);
  Row row = begin(wanted, problem, kernel, Figure::kPeakShare);
  std::vector<Subject> subjects = {{[&] { kernel.run(); }}};
  add_peer(problem, subjects, row);
  time_beside_peak(wanted, problem.shape.dtype, std::move(subjects), std::move(row));
}

void Session::share_of_peak(const Wanted& wanted, const Task& task) {
  Row row = begin(wanted, Figure::kPeakShare);
  row.path = task.path;
  row.work = task.work;
  task.run();
  row.fault = task.fault();
  std::vector<Subject> subjects = {{task.run}};
  for (const PeerTask& peer : task.peers) {
    if (!row.fault.empty()) break;
    peer.way.run();
    const std::string fault = peer.fault();
    if (!fault.empty()) row.fault = peer.name + ", " + peer.way.form + ": " + fault;
    row.peers.push_back({.name = peer.name, .form = peer.way.form});
    subjects.push_back({peer.way.run});
  }
  time_beside_peak(wanted, DType::kFloat32, std::move(subjects), std::move(row));
}

void Session::time(const Wanted& wanted, const std::vector<Subject>& subjects, Row row,
                   const SetFigure& set_figure) {
  if (row.fault.empty()) {
    const std::vector<Series> series = alternate(subjects, effort_of(settings_, wanted));
    row.clock = steadier(series, wanted.threads);
    row.time = summarise(series[0], row.clock);
    set_figure(series, row);
  }
  rows_.push_back(std::move(row));
}

void Session::time_beside_peak(const Wanted& wanted, DType dtype, std::vector<Subject> subjects,
                               Row row) {
  double work = 0;
  if (row.fault.empty() && !target_.empty()) {
    const Peak peak = multiply_add_peak(target_, dtype, wanted.threads);
    work = peak.work;
    subjects.push_back(peak.subject);
  }
  time(wanted, subjects, std::move(row), [&](std::span<const Series> series, Row& to) {
    set_peer_times(series, to);
    if (work == 0) return;
    // The share is relative to the best burst of the peak. A noisy peak gives no share.
    set_base(series.back(), work, to);
    if (!is_noisy(to.base)) to.value = rate(to.work, to.time.median) / rate(work, to.base.best);
  });
}

void Session::share_of_read(const Wanted& wanted, Problem& problem) {
  Kernel kernel(problem, wanted.threads, settings_.stop);
  Row row = begin(wanted, problem, kernel, Figure::kReadShare);
  const Peak peak = read_peak({bytes_of(problem.k), bytes_of(problem.v)}, wanted.threads);
  if (row.fault.empty()) row.work = peak.work;
  time(wanted, {{[&] { kernel.run(); }}, {peak.subject.run}}, std::move(row),
       [&](std::span<const Series> series, Row& to) {
         set_base(series[1], peak.work, to);
         // The memory's rate changes from second to second, by a third and more, with the load of
         // the host's other virtual machines. So each burst is compared with the read in its round,
         // and there is a share only if the error of the median is small.
         constexpr double kMostError = 0.01;
         const Ratio ratio = ratio_of(series[1], series[0], to.clock);
         to.figure_spread = ratio.error;
         if (ratio.error <= kMostError) to.value = ratio.median;
       });
}

void Session::against(const Wanted& wanted, Problem& problem, Problem& base, Figure figure) {
  Kernel kernel(problem, wanted.threads, settings_.stop);
  Kernel other(base, wanted.threads, settings_.stop);
  time(wanted, {{[&] { kernel.run(); }}, {[&] { other.run(); }}},
       begin(wanted, problem, kernel, figure), [&](std::span<const Series> series, Row& to) {
         set_base(series[1], work_of(base), to);
         const Ratio ratio = ratio_of(series[0], series[1], to.clock);
         to.figure_spread = ratio.spread;
         // Figures for which more is better compare rates, since the calls differ in work.
         const bool times = form_of(figure).aim == Aim::kAtMost;
         const double value = times ? ratio.median : to.work / to.base_work / ratio.median;
         if (!is_noisy(ratio)) to.value = value;
       });
}

void Session::threads_share(const Wanted& wanted, Problem& problem) {
  Kernel one(problem, 1, settings_.stop);
  Kernel all(problem, wanted.threads, settings_.stop);
  Row row = begin(wanted, problem, all, Figure::kThreadShare);
  if (target_.empty()) return add(row);
  const Peak peak_one = multiply_add_peak(target_, problem.shape.dtype, 1);
  const Peak peak_all = multiply_add_peak(target_, problem.shape.dtype, wanted.threads);
  time(wanted, {{[&] { all.run(); }}, peak_all.subject, {[&] { one.run(); }}, peak_one.subject},
       std::move(row), [&](std::span<const Series> series, Row& to) {
         set_base(series[1], peak_all.work, to);
         const Summary base_one = summarise(series[3], to.clock);
         const double kernels = summarise(series[2], to.clock).median / to.time.median;
         const double peaks =
             rate(peak_all.work, to.base.best) / rate(peak_one.work, base_one.best);
         if (!is_noisy(base_one) && !is_noisy(to.base)) to.value = kernels / peaks;
       });
}

void Session::alone(const Wanted& wanted, Problem& problem, const std::function<void()>& call) {
  Kernel kernel(problem, wanted.threads, settings_.stop);
  Row row = begin(wanted, problem, kernel, Figure::kSeconds);
  if (call) {
    clear(problem.results());
    call();
    if (row.fault.empty()) row.fault = fault_of(problem, problem.results());
  }
  time(wanted, {{call ? call : [&] { kernel.run(); }}}, std::move(row),
       [](std::span<const Series>, Row& to) { to.value = to.time.median; });
}

void Session::unit_rate(const Wanted& wanted, Problem& problem, const Calls* calls) {
  Kernel kernel(problem, wanted.threads, settings_.stop);
  Row row = begin(wanted, problem, kernel, Figure::kUnitRate);
  std::vector<Subject> subjects = {{[&] { kernel.run(); }}};
  if (calls != nullptr) {
    row.path = calls->path;
    clear(problem.results());
    calls->run();
    calls->finish();
    if (row.fault.empty()) row.fault = fault_of(problem, problem.results());
    subjects[0] = {calls->run};
  } else {
    add_peer(problem, subjects, row);
  }
  time(wanted, subjects, std::move(row), [](std::span<const Series> series, Row& to) {
    to.value = rate(to.work, to.time.median);
    set_peer_times(series, to);
  });
}

}  // namespace qkv::bench
