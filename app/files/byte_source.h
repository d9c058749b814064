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

// The bytes of a file or of a member of an archive, which are read sequentially.
struct ByteSource {
  std::string name{};  // the source's name in messages
  // Reads `bytes` bytes, fewer only at the end of the source; returns how many it has read.
  std::function<std::size_t(void* target, std::size_t bytes)> read{};
  Index size = 0;      // bytes the source is known to hold
  Index position = 0;  // bytes read so far
  // For a pipe, reads ahead and returns how many of the next `bytes` bytes exist. Empty if `size`
  // is final.
  std::function<Index(Index bytes)> look{};

  // Must be called before left() is compared with `bytes`, the claimed size of the data from here
  // on: reads a pipe ahead to one byte beyond that size.
  void look_ahead(Index bytes);

  Index left() const noexcept { return size - position; }
  // Reads exactly `bytes` bytes; throws InputError if the source has fewer.
  void read_all(void* target, std::size_t bytes);
  // Reads and discards `bytes` bytes; throws InputError if the source has fewer.
  void skip(Index bytes);
  [[noreturn]] void fail(std::string_view detail) const;
};

// A source of all bytes of a file, which must outlive it.
ByteSource byte_source(InputFile& file);
// A source of bytes in memory, which must outlive it.
ByteSource byte_source(const std::string& name, std::string_view bytes);

// The size of an array whose elements have size `item_size`; the unit of both sizes is a byte or a
// bit. None if the product of `item_size` and the nonzero axis sizes overflows 63 bits.
std::optional<Index> byte_count(const Dims& shape, Index item_size);

// Reads an array in C order. A bool that is neither 0 nor 1, which is undefined in C++, becomes 1.
// The caller must have compared the array's size with left().
Tensor read_tensor(ByteSource& source, DType dtype, const Dims& shape);

}  // namespace qkv::files

#endif  // QKV_FILES_BYTE_SOURCE_H_
