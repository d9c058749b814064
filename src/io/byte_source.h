// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_BYTE_SOURCE_H_
#define QKV_IO_BYTE_SOURCE_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/tensor.h>

#include "io/file.h"

namespace qkv::io {

// Bytes of a file or of a member of an archive, read from first to last.
struct ByteSource {
  std::string name{};  // as messages name it
  // Reads until `bytes` are there or the source ends; returns how many there are.
  std::function<std::size_t(void* target, std::size_t bytes)> read{};
  Index size = 0;      // what the source is known to hold
  Index position = 0;  // bytes read so far
  // Of a pipe: how many of the next bytes there are. Empty when `size` is all there is.
  std::function<Index(Index bytes)> look{};

  // Before left() is compared with a promise: a pipe is read as far as one byte beyond it.
  void look_ahead(Index bytes);

  Index left() const noexcept { return size - position; }
  // Exactly `bytes` bytes; InputError at where they end.
  void read_all(void* target, std::size_t bytes);
  [[noreturn]] void fail(std::string_view detail) const;
};

// All of a file, which must outlive the source.
ByteSource byte_source(InputFile& file);
// Bytes in memory, which must outlive the source too.
ByteSource byte_source(const std::string& name, std::string_view bytes);

// Bytes of an array; nothing when they, or the sizes other than 0, do not fit in 63 bits.
std::optional<Index> byte_count(const Dims& shape, Index item_size);

// An array in C order from the bytes that come next. Where a bool is neither 0 nor 1, which C++
// does not know, it becomes 1. The caller has compared the shape with what the source holds.
Tensor read_tensor(ByteSource& source, DType dtype, const Dims& shape);

}  // namespace qkv::io

#endif  // QKV_IO_BYTE_SOURCE_H_
