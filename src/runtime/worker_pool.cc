// SPDX-License-Identifier: Apache-2.0
#include "runtime/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

namespace qkv::detail {

namespace {

// The time for which an idle thread polls for work before it sleeps. Waking a sleeping thread takes
// 10 to 50 microseconds, more than many calls take.
constexpr std::chrono::microseconds kLooksFor{50};

// Tells the processor that this is a waiting loop.
void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls done(). Returns true once it holds, or false after kLooksFor.
template <class Done>
bool look_for(const Done& done) noexcept {
  constexpr int kLooks = 32;  // polls between two readings of the clock
  const auto end = std::chrono::steady_clock::now() + kLooksFor;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

// The threads of a pool in one process.
class WorkerThreads {
 public:
  WorkerThreads(int workers, Waiting waiting) : waiting_(waiting) {
    threads_.reserve(static_cast<std::size_t>(workers));
  }

  // Joins the threads. No run may be in progress.
  ~WorkerThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      has_news_.store(true, std::memory_order_release);
    }
    work_left_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(Index count, Executor::Body body, void* state) {
    Job job{.body = body, .state = state, .count = count};
    std::unique_lock lock(mutex_);
    const std::size_t helpers = std::min(static_cast<std::size_t>(count - 1), threads_.capacity());
    start(helpers);
    link(job);
    // Workers are notified while the mutex is free, so that they do not wake just to block on it.
    lock.unlock();
    wake(helpers);
    lock.lock();
    while (job.next < job.count) run_one(job, lock);
    if (waiting_ == Waiting::kLooksFirst && job.running != 0) {
      lock.unlock();
      look_for([&] { return job.running.load(std::memory_order_acquire) == 0; });
      lock.lock();
    }
    body_returned_.wait(lock, [&] { return job.running == 0; });
  }

  bool of_this_process() const noexcept { return pid_ == getpid(); }

  // Abandons an object that was created in the parent process, before fork(). Its threads do not
  // exist here, and its mutex may be locked forever, so it cannot be destroyed. A list keeps it
  // reachable for leak checkers.
  static void abandon(WorkerThreads* threads) noexcept {
    static std::atomic<WorkerThreads*> abandoned{nullptr};
    threads->abandoned_before_ = abandoned.load(std::memory_order_relaxed);
    while (!abandoned.compare_exchange_weak(threads->abandoned_before_, threads,
                                            std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

 private:
  // One run, on the stack of the calling thread. Every member but the constants is written with the
  // mutex locked.
  struct Job {
    const Executor::Body body;
    void* const state;
    const Index count;
    Index next = 0;                 // the next body to start
    std::atomic<Index> running{0};  // bodies started and not yet returned
    Job* older = nullptr;           // the next job in jobs_
  };

  // The main loop of each thread.
  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      bool looks = waiting_ == Waiting::kLooksFirst;
      while (looks && jobs_ == nullptr && !stopping_) {
        lock.unlock();
        looks = look_for([&] { return has_news_.load(std::memory_order_acquire); });
        lock.lock();
      }
      work_left_.wait(lock, [&] { return stopping_ || jobs_ != nullptr; });
      if (stopping_) return;
      run_one(*jobs_, lock);
    }
  }

  // Runs one of a job's remaining bodies, with the mutex released meanwhile. The job may no longer
  // exist once its last body has returned.
  void run_one(Job& job, std::unique_lock<std::mutex>& lock) noexcept {
    const Index index = job.next++;
    if (job.next == job.count) unlink(job);
    ++job.running;
    lock.unlock();
    job.body(job.state, index);
    lock.lock();
    if (--job.running == 0) body_returned_.notify_all();
  }

  void start(std::size_t wanted) {
    try {
      while (threads_.size() < wanted) threads_.emplace_back(&WorkerThreads::work, this);
    } catch (const std::system_error&) {
      // The calling thread runs the bodies that no worker takes.
    }
  }

  void wake(std::size_t helpers) noexcept {
    if (helpers == threads_.capacity()) return work_left_.notify_all();
    for (std::size_t i = 0; i < helpers; ++i) work_left_.notify_one();
  }

  // Puts the job first, because an inner run ends before the outer run continues.
  void link(Job& job) noexcept {
    job.older = jobs_;
    jobs_ = &job;
    has_news_.store(true, std::memory_order_release);
  }

  void unlink(Job& job) noexcept {
    Job** link_to_job = &jobs_;
    while (*link_to_job != &job) link_to_job = &(*link_to_job)->older;
    *link_to_job = job.older;
    has_news_.store(jobs_ != nullptr, std::memory_order_release);
  }

  const pid_t pid_ = getpid();
  const Waiting waiting_;
  std::mutex mutex_;
  std::condition_variable work_left_;
  std::condition_variable body_returned_;
  Job* jobs_ = nullptr;  // list of jobs with bodies not yet started, newest first
  bool stopping_ = false;
  // True if jobs_ != nullptr or stopping_, for threads that poll without the mutex.
  std::atomic<bool> has_news_{false};
  std::vector<std::thread> threads_;  // the capacity is the largest number that may start
  WorkerThreads* abandoned_before_ = nullptr;
};

WorkerPool::~WorkerPool() {
  WorkerThreads* threads = threads_of_pool_.load(std::memory_order_acquire);
  if (threads == nullptr) return;
  if (threads->of_this_process()) {
    delete threads;
  } else {
    WorkerThreads::abandon(threads);
  }
}

void WorkerPool::run(Index count, Executor::Body body, void* state) {
  threads().run(count, body, state);
}

// Returns the threads of this process. They are created if there are none or only the parent's from
// before fork().
WorkerThreads& WorkerPool::threads() {
  WorkerThreads* threads = threads_of_pool_.load(std::memory_order_acquire);
  if (threads != nullptr && threads->of_this_process()) return *threads;
  auto fresh = std::make_unique<WorkerThreads>(workers_, waiting_);
  if (threads_of_pool_.compare_exchange_strong(threads, fresh.get(), std::memory_order_acq_rel)) {
    if (threads != nullptr) WorkerThreads::abandon(threads);
    return *fresh.release();
  }
  return *threads;  // another thread has set it first
}

}  // namespace qkv::detail
