// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_GIL_H_
#define QKV_PYTHON_SRC_GIL_H_

#include <chrono>
#include <thread>

#include <cxxabi.h>
#include <nanobind/nanobind.h>

namespace qkv::python {

// Releases the GIL for the lifetime of the object. A thread that requests the GIL during
// interpreter shutdown never gets it. Python before 3.14 unwinds such a thread, which aborts the
// process if it happens in a destructor; this class instead blocks the thread until the process
// ends, as Python 3.14 does.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { take_back(); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Calls f() under the GIL.
  template <class F>
  auto with_gil(const F& f) {
    take_back();
    const auto result = f();
    state_ = PyEval_SaveThread();
    return result;
  }

 private:
  void take_back() noexcept {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

  PyThreadState* state_;
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_GIL_H_
