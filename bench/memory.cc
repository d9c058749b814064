// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace qkv::bench {
namespace {

void* map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();  // NOLINT(performance-no-int-to-ptr)
#ifdef MADV_HUGEPAGE
  ::madvise(data, bytes, MADV_HUGEPAGE);  // only a hint: small pages work as well
#endif
  return data;
}

}  // namespace

Memory::Memory(std::size_t bytes)
    : data_(map(std::max<std::size_t>(bytes, 1)), Unmap{std::max<std::size_t>(bytes, 1)}) {}

void Memory::Unmap::operator()(void* data) const noexcept { ::munmap(data, bytes); }

}  // namespace qkv::bench
