// SPDX-License-Identifier: Apache-2.0
// Replaces file_calls.cc, files.cc, translator.cc and word_vectors.cc in a build without qkv_app,
// the library that has the file formats and the translator.
#include "areas.h"
#include "files.h"

namespace qkv::python {
namespace {

[[noreturn]] void refuse(const char* what) {
  PyErr_Format(
      PyExc_NotImplementedError,
      "%s is not in this build: qkv was built without its file formats (QKV_APP is OFF, or "
      "libraries that they need were missing)",
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

void bind_translator(nanobind::module_& module) {
  module.def("read_translator", [](nanobind::handle /*path*/) { refuse("Translator"); });
  module.def("linked_translator", [](nanobind::handle /*name*/) { refuse("Translator"); });
}

void bind_word_vectors(nanobind::module_& module) {
  module.def("read_word_vectors",
             [](const nanobind::args& /*all*/) { refuse("read_word_vectors"); });
}

}  // namespace qkv::python
