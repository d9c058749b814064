// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_FUZZ_MEMORY_FILE_H_
#define TESTS_FUZZ_MEMORY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace qkv::fuzz {

// A regular file of these bytes that no disk holds. One file serves all calls: its path is good
// until the next.
inline std::string memory_file(const std::uint8_t* data, std::size_t size) {
  static const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, 0) != 0) std::abort();
  if (::pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  return "/proc/self/fd/" + std::to_string(file);
}

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace qkv::fuzz

// What libFuzzer calls with each input: whatever it holds, the reader takes or refuses it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#endif  // TESTS_FUZZ_MEMORY_FILE_H_
