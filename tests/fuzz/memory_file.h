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

// Returns the path of a regular file in memory that holds the bytes. One file serves all calls: its
// contents are valid until the next call.
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

// libFuzzer calls this function with each input, which the reader must accept or reject.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#endif  // TESTS_FUZZ_MEMORY_FILE_H_
