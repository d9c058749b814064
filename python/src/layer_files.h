// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_FILES_H_
#define QKV_PYTHON_SRC_LAYER_FILES_H_

#include <nanobind/nanobind.h>

#include "layer_parameters.h"

// Parameters in safetensors files. `path` is in the file system's own bytes.
namespace qkv::python {

// The file appears whole or not at all. Raises OSError.
void save_parameters(const nanobind::bytes& path, const ParameterList& list);

// Takes a file that has exactly these names, shapes and dtypes; otherwise raises ValueError naming
// file and tensor, and changes nothing.
void load_parameters(const nanobind::bytes& path, const ParameterList& list);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_FILES_H_
