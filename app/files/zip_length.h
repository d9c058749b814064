// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_ZIP_LENGTH_H_
#define QKV_FILES_ZIP_LENGTH_H_

#include <cstddef>
#include <functional>
#include <optional>

#include <qkv/view.h>

namespace qkv::files {

// Reads up to `bytes` bytes at an offset; returns how many exist.
using ReadAt = std::function<std::size_t(Index offset, void* target, std::size_t bytes)>;

// The fewest bytes that an archive of `size` bytes must have had before its end was cut off,
// according to the headers that are left. None if it is not known to be cut off.
std::optional<Index> least_zip_length(const ReadAt& read, Index size);

}  // namespace qkv::files

#endif  // QKV_FILES_ZIP_LENGTH_H_
