// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace qkv::core {

std::size_t padded_bytes(std::size_t bytes) {
  constexpr std::size_t kMask = kScratchAlignment - 1;
  if (bytes > std::numeric_limits<std::size_t>::max() - kMask) throw std::bad_array_new_length();
  return (bytes + kMask) & ~kMask;
}

std::size_t padded_bytes(Index count, std::size_t size) {
  if (count < 0 ||
      static_cast<std::size_t>(count) > std::numeric_limits<std::size_t>::max() / size) {
    throw std::bad_array_new_length();
  }
  return padded_bytes(static_cast<std::size_t>(count) * size);
}

void* Arena::take_bytes(std::size_t bytes) {
  if (bytes > bytes_ - used_) {
    throw std::logic_error("qkv: " + std::to_string(bytes) + " bytes of scratch wanted, " +
                           std::to_string(bytes_ - used_) + " left of " + std::to_string(bytes_) +
                           " reserved");
  }
  std::byte* const taken = memory_ + used_;
  used_ += bytes;
  return taken;
}

}  // namespace qkv::core
