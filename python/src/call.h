// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_CALL_H_
#define QKV_PYTHON_SRC_CALL_H_

#include <functional>

#include <nanobind/nanobind.h>

#include <qkv/context.h>

// Runs the library's work for calls from Python: threads, scratch memory, and Ctrl-C.
namespace qkv::python {

// Checks the `threads` argument of a call; None gives the default of set_threads(). Throws Error.
int threads_of(const char* function, nanobind::handle threads);

// Sets the number of threads of later calls without `threads`. None or 0 means that of the OpenMP
// library in use (openmp.h), or one per processor if there is none.
void set_threads(nanobind::handle n);
// The number of threads that a call without `threads` uses; never 0.
int thread_count();

// An estimate of the work of a call, in multiply-adds of a fast path.
struct Work {
  Work(double all) : size(all), time(all) {}  // NOLINT(google-explicit-constructor)
  // `numbers` counts the elements that are read, converted or written one at a time.
  Work(double all, double numbers);

  double size;  // the arithmetic that can be divided among threads
  double time;  // the time on one thread, waits for memory included
};

// Runs compute(context) without the GIL. A small amount of work runs on the calling thread alone.
// Long work runs on another thread while this one polls for signals: Ctrl-C stops the work and
// raises KeyboardInterrupt. Contexts are reused by later calls; Python threads that call at the
// same time get separate contexts.
void run_call(int threads, const Work& work, const std::function<void(Context&)>& compute);

// Makes a context outside the pool of reused contexts, for an object that owns its context.
Context make_context(int threads);
// Runs compute(context), as run_call() does, on a context of make_context(). The library throws
// Error if another Python thread is using the context.
void run_on(Context& context, const Work& work, const std::function<void(Context&)>& compute);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_CALL_H_
