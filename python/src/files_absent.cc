// SPDX-License-Identifier: Apache-2.0
// Replaces files.cc in a build without qkv_app, the library that has the file formats.
#include "files.h"

namespace qkv::python {
namespace {

[[noreturn]] void refuse(const char* what) {
  PyErr_Format(PyExc_NotImplementedError,
               "%s is not in this build: qkv was built without its file formats (QKV_APP=OFF)",
               what);
  nanobind::raise_python_error();
}

}  // namespace

void save_parameters(const nanobind::bytes& /*path*/, const ParameterList& /*list*/) {
  refuse("save");
}

void load_parameters(const nanobind::bytes& /*path*/, const ParameterList& /*list*/) {
  refuse("load");
}

void save_cache(const nanobind::bytes& /*path*/, const KvCache& /*cache*/) { refuse("save"); }

KvCache read_cache(const nanobind::bytes& /*path*/, const KvCacheSizes* /*expected*/) {
  refuse("load");
}

}  // namespace qkv::python
