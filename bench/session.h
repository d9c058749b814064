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

// One variant of a peer's code.
struct Way {
  std::string form{};           // the variant's name, one word
  std::function<void()> run{};  // runs it once
};

// Another library's code for some problems, which is timed for comparison.
struct Peer {
  std::string name{};
  // Returns a function that runs the problem's pass once and writes `results`, in the order of
  // Problem::results(); an empty one if the peer does not support the problem. May choose a variant
  // by experiment. The problem and the results' memory must outlive the function.
  std::function<std::function<void()>(const Problem& problem, const std::vector<View>& results,
                                      int threads)>
      bind{};
  // Returns the variants that compute a layer's product into `result`; none if it is not supported.
  std::function<std::vector<Way>(const Product& product, const View& result, int threads)>
      bind_product{};
};

enum class Size {
  kFull,
  kQuick,  // short lengths, fewer rows and no targets: shows that everything runs
};

struct Settings {
  Size size = Size::kFull;
  double seconds = 1;  // measuring time of a row
  Index page = 0;      // keys of a page, for decode; 0: keys are not in pages
  int threads = 0;     // threads of the rows that use several; 0: one per processor
  const std::atomic<bool>* stop = nullptr;  // polled between rows and in calls; true: Cancelled
  std::function<void(std::string_view row)> started{};  // called before each row
  std::span<const Peer> peers{};  // the first that supports a row's problem is timed with it
};

// The description of a row that is to be measured.
struct Wanted {
  std::string name{};
  std::optional<double> target{};
  int threads = 1;
  double effort = 1;  // a fraction of the usual time, for groups of many rows
};

// Calls that are timed instead of a plan. `finish`, which is called after a run and not timed,
// writes the results that a run leaves unfinished.
struct Calls {
  std::string path{};
  std::function<void()> run{};
  std::function<void()> finish{};
};

// A peer's version of a task.
struct PeerTask {
  std::string name{};
  Way way{};
  std::function<std::string()> fault{};  // the fault of the last run's results, or ""
};

// A task that is not a call of attention, to be compared with the multiply-add peak.
struct Task {
  std::string path{};
  double work = 0;  // floating-point operations in float32
  std::function<void()> run{};
  std::function<std::string()> fault{};  // the fault of the last run's results, or ""
  std::vector<PeerTask> peers{};
};

// Measures rows, one after the other, and keeps them.
class Session {
 public:
  explicit Session(const Settings& settings);

  const Settings& settings() const noexcept { return settings_; }
  bool is_quick() const noexcept { return settings_.size == Size::kQuick; }
  int threads() const noexcept { return threads_; }
  // The length T, or a shorter one in a quick run.
  Index length(Index T) const;

  // Each of the following functions checks the result of a call against the reference, times the
  // call and adds a row. share_of_peak() compares it with the multiply-add peak, and with a peer if
  // one supports it.
  void share_of_peak(const Wanted& wanted, Problem& problem);
  void share_of_peak(const Wanted& wanted, const Task& task);
  // Compares the call with a plain read of the problem's keys and values.
  void share_of_read(const Wanted& wanted, Problem& problem);
  // Compares the call with the call `base`, which has fewer options or another shape.
  void against(const Wanted& wanted, Problem& problem, Problem& base, Figure figure);
  // Compares the speedup over one thread with that of the multiply-add peak.
  void threads_share(const Wanted& wanted, Problem& problem);
  // Makes no comparison; times `call` or, if it is empty, the problem's plan.
  void alone(const Wanted& wanted, Problem& problem, const std::function<void()>& call);
  // Reports units of an additive score per second; times `calls` or, if it is null, the problem's
  // plan, with a peer if one supports it.
  void unit_rate(const Wanted& wanted, Problem& problem, const Calls* calls = nullptr);
  // Adds a row that is not timed.
  void add(const Row& row) { rows_.push_back(row); }

  const std::vector<Row>& rows() const noexcept { return rows_; }
  std::vector<Row>& rows() noexcept { return rows_; }

 private:
  // A row with all that is known before anything is timed, and a fault if the result is wrong.
  Row begin(const Wanted& wanted, Problem& problem, Kernel& kernel, Figure figure) const;
  Row begin(const Wanted& wanted, Figure figure) const;
  // Computes the figure of a row, whose clock and time are set, from the series of its subjects.
  using SetFigure = std::function<void(std::span<const Series>, Row&)>;
  // If the row has no fault, times the subjects together, of which the first is the row's call, and
  // sets the figure. Adds the row.
  void time(const Wanted& wanted, const std::vector<Subject>& subjects, Row row,
            const SetFigure& set_figure);
  // Does the work of time() for subjects that are the row's call and its peers, together with the
  // peak, and sets the share of the peak.
  void time_beside_peak(const Wanted& wanted, DType dtype, std::vector<Subject> subjects, Row row);
  // Adds the first peer that supports the row's problem to the subjects, and its name to the row.
  // If the peer's result is wrong, sets the row's fault instead.
  void add_peer(Problem& problem, std::vector<Subject>& subjects, Row& row) const;

  Settings settings_;
  int threads_;
  std::string target_;
  std::vector<Row> rows_;
};

}  // namespace qkv::bench

#endif  // QKV_BENCH_SESSION_H_
