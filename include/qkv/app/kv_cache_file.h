// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_KV_CACHE_FILE_H_
#define QKV_APP_KV_CACHE_FILE_H_

#include <string>

#include <qkv/app/file_error.h>
#include <qkv/export.h>
#include <qkv/kv_cache.h>

// Storage of a KvCache in a safetensors file: the arrays of its contents() under their names, and
// its format, dtype, window and queries as text. Pages of q8 are stored as bytes, uint8
// [pages,page,G,34 D/32], the blocks of a row one after another. The path "-" is standard input or
// standard output.
namespace qkv::app {

// Writes the file atomically, from a copy of the pages in use. Throws OutputError.
QKV_API void write_kv_cache(const std::string& path, const KvCache& cache);

// Reads a cache whose further results are bit-identical to those of the written one. Every field is
// checked; throws InputError that names the file and the field.
QKV_API KvCache read_kv_cache(const std::string& path);

// Reads a cache and throws InputError that names the first size that differs from `expected`.
QKV_API KvCache read_kv_cache(const std::string& path, const KvCacheSizes& expected);

}  // namespace qkv::app

#endif  // QKV_APP_KV_CACHE_FILE_H_
