// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <stdexcept>
#include <string>

namespace qkv::core {

void fail_too_many_bytes() { throw std::bad_array_new_length(); }

void Arena::fail_full(std::size_t bytes) const {
  throw std::logic_error("qkv: " + std::to_string(bytes) + " bytes of scratch memory requested, " +
                         std::to_string(bytes_ - used_) + " left of " + std::to_string(bytes_) +
                         " reserved");
}

}  // namespace qkv::core
