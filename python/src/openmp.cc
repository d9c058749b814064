// SPDX-License-Identifier: Apache-2.0
#include "openmp.h"

#include <atomic>

#include <dlfcn.h>
#include <pthread.h>

namespace qkv::python {
namespace {

// GOMP_parallel, which GCC's code for `#pragma omp parallel` calls, and omp_get_max_threads. The
// runtimes of GCC, LLVM and Intel have both.
using Parallel = void (*)(void (*body)(void*), void* state, unsigned threads, unsigned flags);
using MostThreads = int (*)();

struct Runtime {
  Parallel parallel = nullptr;
  MostThreads most_threads = nullptr;
};

// The runtime in use. It is written under the GIL, before any executor reads it.
Runtime& runtime() {
  static Runtime runtime;
  return runtime;
}

// Whether this process is the child of a fork().
std::atomic<bool>& is_child() {
  static std::atomic<bool> is_child{false};
  return is_child;
}

// The bodies of a parallel loop. The threads of an OpenMP team, which may be fewer than the bodies,
// take them one by one until none is left.
struct Bodies {
  const Executor::Body body;
  void* const state;
  const Index count;
  std::atomic<Index> next{0};

  static void work(void* bodies) {
    Bodies& self = *static_cast<Bodies*>(bodies);
    for (;;) {
      const Index index = self.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= self.count) return;
      self.body(self.state, index);
    }
  }
};

void parallel_for(void* /*pool*/, Index count, Executor::Body body, void* state) {
  Bodies bodies{.body = body, .state = state, .count = count};
  // Without a runtime the bodies run here: a fork() or use_openmp_of("") may have come after the
  // executor was made.
  if (openmp_threads() == 0) return Bodies::work(&bodies);
  runtime().parallel(&Bodies::work, &bodies, static_cast<unsigned>(count), 0);
}

}  // namespace

bool use_openmp_of(const std::string& library) {
  if (library.empty()) {
    runtime() = {};
    return false;
  }
  void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  // dlsym() also searches the libraries that this library depends on.
  const auto parallel = reinterpret_cast<Parallel>(dlsym(handle, "GOMP_parallel"));
  const auto most_threads = reinterpret_cast<MostThreads>(dlsym(handle, "omp_get_max_threads"));
  if (parallel == nullptr || most_threads == nullptr) {
    dlclose(handle);
    return false;
  }
  static const int kWatchesForks =
      pthread_atfork(nullptr, nullptr, [] { is_child().store(true, std::memory_order_relaxed); });
  if (kWatchesForks != 0) return false;
  runtime() = {parallel, most_threads};
  return true;  // the handle stays open, since the functions are used until the process ends
}

int openmp_threads() {
  if (runtime().parallel == nullptr || is_child().load(std::memory_order_relaxed)) return 0;
  return runtime().most_threads();
}

Executor openmp_executor(int threads) { return {parallel_for, nullptr, threads}; }

}  // namespace qkv::python
