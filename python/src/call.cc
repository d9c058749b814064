// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "openmp.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

// Work below this runs on one thread, since starting other threads would take about as long as the
// work: 4 microseconds if they spin and 10 or more if they sleep.
constexpr double kSmallWork = 1.5e5;
// From this much work on, the calling thread polls for signals while another thread computes, which
// costs a tenth of a millisecond. The work takes 5 to 10 milliseconds on a fast path, some tenths
// of a second if each number is read from memory for one product, a second or two on the reference.
constexpr double kLongWork = 1e9;
// From this much work on (30 kLongWork), polling for signals is worth more than sharing another
// library's workers: they work only for the calling thread, which could not poll meanwhile.
constexpr double kLongWorkOnOpenMp = 3e10;
constexpr std::chrono::milliseconds kBetweenSignals{10};
// The multiply-adds that are counted for a number that is read from memory or converted, which
// takes 1 to 10 nanoseconds.
constexpr double kWorkOfNumber = 200;
// The most scratch memory, in bytes, that a context keeps between calls.
constexpr std::size_t kKeptScratch = std::size_t{64} << 20;

// ---- contexts -------------------------------------------------------------------------------

enum class Workers { kOwn, kOpenMp };

// The threads that run a call: whose they are, and how many.
struct Team {
  Workers workers = Workers::kOwn;
  int threads = 0;  // 0 for one per processor

  auto operator<=>(const Team&) const = default;
  Executor executor() const {
    switch (workers) {
      case Workers::kOwn:
        return Executor::threads(threads);
      case Workers::kOpenMp:
        return openmp_executor(threads);
    }
    return {};
  }
};

// The state between calls: the default number of threads, the executors, and the contexts that no
// call is using. It is accessed only under the GIL, so that it is consistent in a fork(), which
// Python calls under the GIL. It is never destroyed: calls may still be running at process exit.
struct Idle {
  int default_threads = 0;
  std::map<Team, Executor> executors;
  std::map<Team, std::vector<std::unique_ptr<Context>>> contexts;
};

Idle& idle() {
  static Idle* const kIdle = new Idle;
  return *kIdle;
}

// The team for a call: the other library's workers, if `threads` is their number or 0 and the work
// is not too long; else our own threads. If `threads` is 0, either team has the other library's
// number of threads, or one per processor without another library.
Team team_for(int threads, const Work& work) {
  const int others = openmp_threads();
  if (threads == 0 && others > 0) threads = others;
  const bool is_theirs = threads == others && others > 1 && work.time < kLongWorkOnOpenMp;
  return {is_theirs ? Workers::kOpenMp : Workers::kOwn, threads};
}

// The executor of a team. Only a few are kept, so that a program that tries many numbers of threads
// does not keep the threads of all of them.
const Executor& executor_of(const Team& team) {
  constexpr std::size_t kMostKept = 4;
  auto& executors = idle().executors;
  const auto found = executors.find(team);
  if (found != executors.end()) return found->second;
  if (executors.size() >= kMostKept) {
    idle().contexts.clear();
    executors.clear();  // contexts in use keep their executors alive
  }
  return executors.emplace(team, team.executor()).first->second;
}

// A context for one call, which the constructor takes from Idle and the destructor returns. Both
// need the GIL.
class Lease {
 public:
  explicit Lease(const Team& team) : team_(team) {
    auto& free = idle().contexts[team];
    if (free.empty()) {
      context_ = std::make_unique<Context>(executor_of(team));
      return;
    }
    context_ = std::move(free.back());
    free.pop_back();
  }
  ~Lease() {
    if (!idle().executors.contains(team_)) return;
    if (context_->scratch_bytes() > kKeptScratch) context_->release_scratch();
    idle().contexts[team_].push_back(std::move(context_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Context& operator*() { return *context_; }

 private:
  Team team_;
  std::unique_ptr<Context> context_;
};

// ---- long work ------------------------------------------------------------------------------

// Runs the work of a call on a separate thread.
class Worker {
 public:
  Worker(Context& context, const std::function<void(Context&)>& compute)
      : thread_([this, &context, &compute] {
          try {
            compute(context);
          } catch (...) {
            error_ = std::current_exception();
          }
          const std::lock_guard lock(mutex_);
          done_ = true;
          changed_.notify_one();
        }) {}
  ~Worker() { join(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Waits for at most kBetweenSignals; returns whether the work is done.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kBetweenSignals, [this] { return done_; });
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  const std::exception_ptr& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // the last member, since the thread uses the others
};

// The stop flag that a context has for the lifetime of this object.
class StopFlag {
 public:
  explicit StopFlag(Context& context) : context_(context) { context.set_stop_flag(&flag_); }
  ~StopFlag() { context_.set_stop_flag(nullptr); }
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;
  void set() { flag_ = true; }

 private:
  Context& context_;
  std::atomic<bool> flag_{false};
};

// Runs the work on another thread and polls for signals. Called under the GIL, which is released
// while waiting. Returns false, without running the work, if no thread can be started.
bool run_and_watch(Context& context, const std::function<void(Context&)>& compute) {
  StopFlag stop(context);
  std::optional<Worker> worker;
  try {
    worker.emplace(context, compute);
  } catch (const std::system_error&) {
    return false;
  }
  bool interrupted = false;
  {
    WithoutGil no_gil;
    while (!interrupted && !worker->wait()) {
      interrupted = no_gil.with_gil([] { return PyErr_CheckSignals() != 0; });
    }
    if (interrupted) stop.set();
    worker->join();
  }
  if (interrupted) nb::raise_python_error();
  if (worker->error()) std::rethrow_exception(worker->error());
  return true;
}

// Runs the work on the calling thread; Ctrl-C takes effect only after it.
void run_here(Context& context, const std::function<void(Context&)>& compute) {
  const WithoutGil no_gil;
  compute(context);
}

int count_of_threads(nb::handle threads, const Name& name) {
  const Index count = index_of(threads, name);
  if (count < 0 || count > Executor::kMostThreads) {
    throw_value_error(name, "must be in 0 (one for each processor) to " +
                                std::to_string(Executor::kMostThreads) + ", got " +
                                std::to_string(count));
  }
  return static_cast<int>(count);
}

}  // namespace

Work::Work(double all, double numbers) : size(all), time(all + kWorkOfNumber * numbers) {}

int threads_of(const char* function, nb::handle threads) {
  return threads.is_none() ? idle().default_threads
                           : count_of_threads(threads, {function, "threads"});
}

void set_threads(nb::handle n) {
  idle().default_threads = n.is_none() ? 0 : count_of_threads(n, {"set_threads", "n"});
}

int thread_count() {
  // The number of threads does not depend on the work, so that any work will do.
  return executor_of(team_for(idle().default_threads, 0)).concurrency();
}

void run_call(int threads, const Work& work, const std::function<void(Context&)>& compute) {
  const Team team = work.size < kSmallWork ? Team{Workers::kOwn, 1} : team_for(threads, work);
  Lease context(team);
  switch (team.workers) {
    case Workers::kOwn:
      return run_on(*context, work, compute);
    case Workers::kOpenMp:
      return run_here(*context, compute);
  }
}

Context make_context(int threads) {
  return Context(executor_of({Workers::kOwn, team_for(threads, 0).threads}));
}

void run_on(Context& context, const Work& work, const std::function<void(Context&)>& compute) {
  // The work also runs here if no thread can be started.
  if (work.time >= kLongWork && run_and_watch(context, compute)) return;
  run_here(context, compute);
}

}  // namespace qkv::python
