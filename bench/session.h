// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_SESSION_H_
#define QKV_BENCH_SESSION_H_

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure.h"
#include "peak.h"
#include "problem.h"
#include "product.h"
#include "row.h"

namespace qkv::bench {

// One variant of a peer's code: runs it once.
struct Way {
  std::string form{};  // a word
  std::function<void()> run{};
};

// Another library's code for some problems.
struct Peer {
  std::string name{};
  // A function that runs the problem's pass once, writing `results`, in the order of
  // Problem::results(); empty if it does not support the problem. May choose by experiment. The
  // problem and the results' memory must outlive the function.
  std::function<std::function<void()>(const Problem& problem, const std::vector<View>& results,
                                      int threads)>
      bind{};
  // The same for a layer's product into `result`; none if it does not support it.
  std::function<std::vector<Way>(const Product& product, const View& result, int threads)>
      bind_product{};
};

enum class Size {
  kFull,
  kQuick,  // some of the lengths, and no targets: shows that everything runs
};

struct Settings {
  Size size = Size::kFull;
  double seconds = 1;  // per row
  Index page = 0;      // above 0: keys per page, for decode
  int threads = 0;     // for the rows that use several; 0: one per processor
  const std::atomic<bool>* stop = nullptr;
  std::function<void(std::string_view row)> started{};
  std::span<const Peer> peers{};  // the first that supports a row's problem is timed with it
};

// The description of a row, before it is measured.
struct Wanted {
  std::string name{};
  std::optional<double> target{};
  int threads = 1;
  double effort = 1;  // a fraction of the usual time, for groups of many rows
};

// What is timed instead of a plan. `finish`, called after a run and not timed, writes the
// results that a run leaves unfinished.
struct Calls {
  std::string path{};
  std::function<void()> run{};
  std::function<void()> finish{};
};

// A peer's version of a task.
struct PeerTask {
  std::string name{};
  Way way{};
  std::function<std::string()> fault{};  // as for a task
};

// A task compared with the peak that is not an attention problem.
struct Task {
  std::string path{};
  double work = 0;  // floating-point operations, float32
  std::function<void()> run{};
  std::function<std::string()> fault{};  // the fault of the last run's results, or ""
  std::vector<PeerTask> peers{};
};

// Measures rows, one after the other.
class Session {
 public:
  explicit Session(const Settings& settings);

  const Settings& settings() const noexcept { return settings_; }
  bool is_quick() const noexcept { return settings_.size == Size::kQuick; }
  int threads() const noexcept { return threads_; }
  // A length, or its replacement in a quick run.
  Index length(Index T) const;

  // Each checks the result, then times the call: against the peak (and a peer, if one supports it),
  // a plain read of the problem's keys and values, the same call with fewer options or another
  // shape (`base`), nothing at all.
  void share_of_peak(const Wanted& wanted, Problem& problem);
  void share_of_peak(const Wanted& wanted, const Task& task);
  void share_of_read(const Wanted& wanted, Problem& problem);
  void against(const Wanted& wanted, Problem& problem, Problem& base, Figure figure);
  void threads_share(const Wanted& wanted, Problem& problem);
  void alone(const Wanted& wanted, Problem& problem, const std::function<void()>& call);
  // Units of an additive score per second, with a peer if one supports it.
  void unit_rate(const Wanted& wanted, Problem& problem, const Calls* calls = nullptr);
  // A row computed from others.
  void add(const Row& row) { rows_.push_back(row); }

  const std::vector<Row>& rows() const noexcept { return rows_; }
  std::vector<Row>& rows() noexcept { return rows_; }

 private:
  // What is known before anything is timed; with a fault if the result is wrong.
  Row begin(const Wanted& wanted, Problem& problem, Kernel& kernel, Figure figure) const;
  Row begin(const Wanted& wanted, Figure figure) const;
  // If the result is right, times the row's subject, the first, together with the others, and
  // computes the figure; adds the row, whose clock and time are set before.
  using SetFigure = std::function<void(std::span<const Series>, Row&)>;
  void time(const Wanted& wanted, const std::vector<Subject>& subjects, Row row,
            const SetFigure& set_figure);
  // The same with the row's peers as the others, and the peak.
  void time_beside_peak(const Wanted& wanted, DType dtype, std::vector<Subject> subjects, Row row);
  // Adds the first peer that supports the row's problem to the subjects, and its name to the row;
  // also its fault if its result is wrong.
  void add_peer(Problem& problem, std::vector<Subject>& subjects, Row& row) const;

  Settings settings_;
  int threads_;
  std::string target_;
  std::vector<Row> rows_;
};

}  // namespace qkv::bench

#endif  // QKV_BENCH_SESSION_H_
