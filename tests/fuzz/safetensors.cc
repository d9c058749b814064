// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/array_file.h>

#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    qkv::app::read_safetensors(qkv::fuzz::memory_file(data, size));
  } catch (const qkv::app::InputError&) {
  }
  return 0;
}
