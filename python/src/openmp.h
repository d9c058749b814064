// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_OPENMP_H_
#define QKV_PYTHON_SRC_OPENMP_H_

#include <string>

#include <qkv/context.h>

// The workers of an OpenMP runtime that another library brought into the process. They spin for
// milliseconds after each of its operations, on the processors that workers of our own would need.
// Nothing is linked: the runtime is found where it is loaded.
namespace qkv::python {

// From now on the workers are those of the runtime that the library in this file uses; "": our own.
// Returns whether it is loaded and uses one; if not, nothing changes.
bool use_openmp_of(const std::string& library);

// How many threads the runtime gives to the calling thread's operations; 0: there is no runtime, or
// this is the child of a fork(), in which its workers do not exist.
int openmp_threads();

// An executor on the runtime's workers. The runtime keeps workers for each thread that starts
// operations: to share those of the other library, start from the same thread.
Executor openmp_executor(int threads);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_OPENMP_H_
