// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPENMP_H_
#define QKV_PYTHON_SRC_OPENMP_H_

#include <string>

#include <qkv/context.h>

// Runs work on the workers of an OpenMP runtime that another library has loaded into the process.
// OpenMP workers spin for milliseconds after each operation of that library, on the processors that
// workers of our own would need. The runtime is not linked but looked up among loaded libraries.
namespace qkv::python {

// Makes later calls use the workers of the OpenMP runtime that `library`, the path of a loaded
// shared library, uses; "" makes them use our own. Returns whether the runtime's workers are used
// now; if the library is not loaded or uses no such runtime, nothing changes and the result is
// false.
bool use_openmp_of(const std::string& library);

// The number of threads that the runtime gives to operations of the calling thread. It is 0 without
// a runtime, and in the child of a fork(), which has no workers.
int openmp_threads();

// An executor on the runtime's workers. The runtime has separate workers for each thread that
// starts operations, so that work must start on the same thread as the other library's operations.
Executor openmp_executor(int threads);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPENMP_H_
