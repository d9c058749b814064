// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_AREAS_H_
#define QKV_PYTHON_SRC_AREAS_H_

#include <nanobind/nanobind.h>

// Each function adds the bindings of one source file to the Python module.
namespace qkv::python {

void bind_additive_memory(nanobind::module_& module);
void bind_kv_cache(nanobind::module_& module);
void bind_attention(nanobind::module_& module);
void bind_options(nanobind::module_& module);
void bind_backward(nanobind::module_& module);
void bind_cuda_attention(nanobind::module_& module);
void bind_cross_entropy(nanobind::module_& module);
void bind_dropout(nanobind::module_& module);
void bind_expressions(nanobind::module_& module);
void bind_functions(nanobind::module_& module);
void bind_gru_cell(nanobind::module_& module);
void bind_info(nanobind::module_& module);
void bind_layers(nanobind::module_& module);
void bind_model_layers(nanobind::module_& module);
void bind_ring(nanobind::module_& module);
void bind_torch_attention(nanobind::module_& module);
void bind_translator(nanobind::module_& module);
void bind_word_vectors(nanobind::module_& module);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_AREAS_H_
