// SPDX-License-Identifier: Apache-2.0
#include "file_calls.h"

#include "call.h"

namespace qkv::python {

namespace nb = nanobind;

void raise_error(PyObject* kind, const std::exception& error) {
  const std::string text = error.what();
  const nb::object message = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  PyErr_SetObject(kind, message.ptr());
  nb::raise_python_error();
}

std::string file_name(const nb::bytes& path) {
  std::string name(path.c_str(), path.size());
  if (name.find('\0') != std::string::npos) throw nb::value_error("path has a null character");
  return name == "-" ? "./-" : name;
}

void run_watched(int threads, const std::function<void(Context&)>& compute) {
  constexpr double kLong = 1e12;  // multiply-adds: enough for run_call() to poll for signals
  run_call(threads, kLong, compute);
}

}  // namespace qkv::python
