// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_CALL_H_
#define QKV_PYTHON_SRC_CALL_H_

#include <functional>

#include <nanobind/nanobind.h>

#include <qkv/context.h>

// Running calls from Python: threads, and Ctrl-C.
namespace qkv::python {

// The checked `threads` argument of a call; for None the value of set_threads. Throws Error.
int threads_of(const char* function, nanobind::handle threads);

// Sets the number of threads of later calls that do not give one; 0: one per processor.
void set_threads(nanobind::handle threads);
// That number.
int thread_count();

// How much a call does, in multiply-adds of a fast path, roughly.
struct Work {
  Work(double all) : size(all), time(all) {}  // NOLINT(google-explicit-constructor)
  // `numbers` are read, converted or written, one by one.
  Work(double all, double numbers);

  double size;  // what threads share
  double time;  // how long it takes one thread, which may wait for memory
};

// Runs compute(context) without the GIL. Little work is for the calling thread alone; for long work
// another thread waits for signals: Ctrl-C stops the work and raises KeyboardInterrupt. Contexts
// are reused by later calls; Python threads that call at once each get their own.
void run_call(int threads, const Work& work, const std::function<void(Context&)>& compute);

// A context that is never returned to the pool: for objects bound to one.
Context make_context(int threads);
// run_call on such a context. If another Python thread is using it, the library reports that.
void run_on(Context& context, const Work& work, const std::function<void(Context&)>& compute);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_CALL_H_
