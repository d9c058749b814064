// SPDX-License-Identifier: Apache-2.0
#include "files/byte_source.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

namespace qkv::files {

void ByteSource::read_all(void* target, std::size_t bytes) {
  const std::size_t got = read(target, bytes);
  const Index expected = position + static_cast<Index>(bytes);
  position += static_cast<Index>(got);
  if (got == bytes) return;
  fail(fmt::format("{}expected at least {} bytes, got {}", kTruncated, expected, position));
}

void ByteSource::skip(Index bytes) {
  std::array<std::byte, std::size_t{1} << 16> block;
  while (bytes > 0) {
    const Index some = std::min(bytes, static_cast<Index>(block.size()));
    read_all(block.data(), static_cast<std::size_t>(some));
    bytes -= some;
  }
}

void ByteSource::fail(std::string_view detail) const {
  throw app::InputError::at_byte(name, position, detail);
}

void ByteSource::look_ahead(Index bytes) {
  if (look) size = position + look(bytes < std::numeric_limits<Index>::max() ? bytes + 1 : bytes);
}

ByteSource byte_source(InputFile& file) {
  ByteSource source{.name = file.name()};
  source.read = [&file](void* target, std::size_t bytes) { return file.read(target, bytes); };
  if (file.size()) {
    source.size = *file.size();
  } else {
    source.look = [&file](Index bytes) {
      return static_cast<Index>(file.peek(static_cast<std::size_t>(bytes)).size());
    };
  }
  return source;
}

ByteSource byte_source(const std::string& name, std::string_view bytes) {
  ByteSource source{.name = name};
  source.read = [bytes](void* target, std::size_t count) mutable {
    const std::size_t got = bytes.copy(static_cast<char*>(target), count);
    bytes.remove_prefix(got);
    return got;
  };
  source.size = static_cast<Index>(bytes.size());
  return source;
}

std::optional<Index> byte_count(const Dims& shape, Index item_size) {
  Index count = 1;
  bool empty = false;
  for (const Index size : shape) {
    empty = empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, item_size, &count)) return std::nullopt;
  return empty ? 0 : count;
}

Tensor read_tensor(ByteSource& source, DType dtype, const Dims& shape) {
  Tensor tensor(dtype, shape);
  auto* const data = static_cast<std::byte*>(tensor.view().data());
  const auto bytes = static_cast<std::size_t>(tensor.element_count()) * size_of(dtype);
  source.read_all(data, bytes);
  if (dtype == DType::kBool) {
    for (std::size_t i = 0; i < bytes; ++i) data[i] = std::byte{data[i] != std::byte{0}};
  }
  return tensor;
}

}  // namespace qkv::files
