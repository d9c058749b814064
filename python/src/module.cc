// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <qkv/version.h>

#include "areas.h"
#include "errors.h"
#include "numpy.h"

namespace qkv::python {
namespace {

void bind_all(nanobind::module_& module) {
#ifdef NDEBUG
  // Objects that a global variable holds, such as a graph of autograd, are alive when the
  // interpreter exits, and nanobind would report them as leaks.
  nanobind::set_leak_warnings(false);
#endif
  numpy();  // first called here, while only one thread can call it
  register_errors();
  module.attr("__version__") = QKV_VERSION;
  bind_options(module);
  bind_attention(module);
  bind_torch_attention(module);
  bind_cuda_attention(module);
  bind_backward(module);
  bind_ring(module);
  bind_expressions(module);
  bind_functions(module);
  bind_info(module);
  bind_layers(module);
  bind_model_layers(module);
  bind_cross_entropy(module);
  bind_additive_memory(module);
  bind_kv_cache(module);
  bind_dropout(module);
  bind_gru_cell(module);
  bind_translator(module);
  bind_word_vectors(module);
}

}  // namespace
}  // namespace qkv::python

NB_MODULE(_core, module) { qkv::python::bind_all(module); }
