// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_FILE_CALLS_H_
#define QKV_PYTHON_SRC_FILE_CALLS_H_

#include <exception>
#include <functional>
#include <string>

#include <nanobind/nanobind.h>

#include <qkv/app/file_error.h>
#include <qkv/context.h>

// Names of files and errors of files, for calls that read or write files by qkv_app.
namespace qkv::python {

// The name of the file at `path`. "-" becomes "./-", since qkv_app takes "-" for standard input or
// output.
std::string file_name(const nanobind::bytes& path);

// Raises a Python error with the text of `error`, in which a file name may not be valid UTF-8.
[[noreturn]] void raise_error(PyObject* kind, const std::exception& error);

// Returns f(); errors of files become ValueError or OSError.
template <class F>
auto with_file_errors(const F& f) {
  try {
    return f();
  } catch (const app::InputError& error) {
    raise_error(PyExc_ValueError, error);
  } catch (const app::OutputError& error) {
    raise_error(PyExc_OSError, error);
  }
}

// Runs compute(context) without the GIL, always on another thread, so that Ctrl-C stops it: for
// work that takes long, or whose time is not known. Readers of files in compute() poll
// context.stop_flag().
void run_watched(int threads, const std::function<void(Context&)>& compute);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_FILE_CALLS_H_
