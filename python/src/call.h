// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_CALL_H_
#define QKV_PYTHON_SRC_CALL_H_

#include <functional>

#include <nanobind/nanobind.h>

#include <qkv/context.h>

// Where Python's calls run: threads, and Ctrl-C.
namespace qkv::python {

// The `threads` argument of a call, checked: what set_threads said for None. Throws Error.
int threads_of(const char* function, nanobind::handle threads);

// What calls without a number of threads take from now on; 0: one for each processor.
void set_threads(nanobind::handle threads);
// How many those are.
int thread_count();

// Runs compute(context) without the GIL. Long work (in multiply-adds, roughly) runs beside a
// thread that waits for signals: Ctrl-C stops it and raises KeyboardInterrupt. Contexts are kept
// for later calls; several Python threads may call at once, each gets its own.
void run_call(int threads, double work, const std::function<void(Context&)>& compute);

// A context that is not given back: for what is bound to one.
Context make_context(int threads);
// run_call on such a context. When another Python thread uses it, the library says so.
void run_on(Context& context, double work, const std::function<void(Context&)>& compute);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_CALL_H_
