// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_FILES_H_
#define QKV_PYTHON_SRC_FILES_H_

#include <nanobind/nanobind.h>

#include <qkv/kv_cache.h>

#include "layer_parameters.h"

// Reads and writes parameters and caches in safetensors files. `path` is in the file system's
// encoding.
namespace qkv::python {

// Writes the parameters, under their names, atomically. Raises OSError.
void save_parameters(const nanobind::bytes& path, const ParameterList& list);

// Reads the parameters from a file with exactly these names, shapes and dtypes. For any other file
// raises ValueError with the names of file and tensor, and changes nothing.
void load_parameters(const nanobind::bytes& path, const ParameterList& list);

// Write a cache atomically, and read one, whose sizes must be `expected` if that is not null. The
// errors are those of save_parameters() and load_parameters().
void save_cache(const nanobind::bytes& path, const KvCache& cache);
KvCache read_cache(const nanobind::bytes& path, const KvCacheSizes* expected);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_FILES_H_
