// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_KV_CACHE_FILE_H_
#define QKV_APP_KV_CACHE_FILE_H_

#include <string>

#include <qkv/app/file_error.h>
#include <qkv/export.h>
#include <qkv/kv_cache.h>

// A KvCache in a safetensors file: the arrays of its contents() under their names; its format,
// dtype, window and queries as text. Pages of q8 are bytes there, uint8 [pages,page,G,34 D/32], the
// blocks of a row one after another. "-" is standard input or standard output.
namespace qkv::app {

// The file is written atomically, from a copy of the pages in use. Throws OutputError.
QKV_API void write_kv_cache(const std::string& path, const KvCache& cache);

// A cache that goes on as the one that was written, to the bit. Every field is checked: throws
// InputError naming file and field.
QKV_API KvCache read_kv_cache(const std::string& path);

// The same, but a file of other sizes throws InputError naming the first that differs.
QKV_API KvCache read_kv_cache(const std::string& path, const KvCacheSizes& expected);

}  // namespace qkv::app

#endif  // QKV_APP_KV_CACHE_FILE_H_
