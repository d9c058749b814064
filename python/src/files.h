// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_FILES_H_
#define QKV_PYTHON_SRC_FILES_H_

#include <nanobind/nanobind.h>

#include <qkv/kv_cache.h>

#include "layer_parameters.h"

// Parameters and caches in safetensors files. `path` is in the file system's encoding.
namespace qkv::python {

// The file is written atomically. Raises OSError.
void save_parameters(const nanobind::bytes& path, const ParameterList& list);

// Reads a file with exactly these names, shapes and dtypes; otherwise raises ValueError naming file
// and tensor, and changes nothing.
void load_parameters(const nanobind::bytes& path, const ParameterList& list);

// The same for a cache; `expected` may be null: any sizes.
void save_cache(const nanobind::bytes& path, const KvCache& cache);
KvCache read_cache(const nanobind::bytes& path, const KvCacheSizes* expected);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_FILES_H_
