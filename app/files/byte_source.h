// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_BYTE_SOURCE_H_
#define QKV_FILES_BYTE_SOURCE_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/tensor.h>

#include "files/file.h"

namespace qkv::files {

// Bytes of a file or of a member of an archive, read sequentially.
struct ByteSource {
  std::string name{};  // in messages
  // Reads until it has `bytes` or the source ends; returns how many it got.
  std::function<std::size_t(void* target, std::size_t bytes)> read{};
  Index size = 0;      // bytes the source is known to hold
  Index position = 0;  // bytes read so far
  // For a pipe: how many of the next bytes are available. Empty if `size` is final.
  std::function<Index(Index bytes)> look{};

  // Called before left() is compared with a claimed size: reads a pipe up to one byte beyond it.
  void look_ahead(Index bytes);

  Index left() const noexcept { return size - position; }
  // Exactly `bytes` bytes, or InputError where they end.
  void read_all(void* target, std::size_t bytes);
  // Reads so many bytes and keeps none of them, or InputError where they end.
  void skip(Index bytes);
  [[noreturn]] void fail(std::string_view detail) const;
};

// All of a file, which must outlive the source.
ByteSource byte_source(InputFile& file);
// Bytes in memory, which must outlive the source.
ByteSource byte_source(const std::string& name, std::string_view bytes);

// Bytes of an array; empty if they, or the product of the nonzero sizes, overflow 63 bits.
std::optional<Index> byte_count(const Dims& shape, Index item_size);

// Reads an array in C order. A bool that is neither 0 nor 1, which is undefined in C++,
// becomes 1. The caller has compared the shape with the source's size.
Tensor read_tensor(ByteSource& source, DType dtype, const Dims& shape);

}  // namespace qkv::files

#endif  // QKV_FILES_BYTE_SOURCE_H_
