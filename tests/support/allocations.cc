// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocations.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// Every form of the operators is replaced, because a sanitizer's own versions would bypass this
// file. They are in a separate file so that they are not inlined: gcc 12 reports an inlined pair of
// new and free() as a mismatch.
namespace {

using std::align_val_t;
using std::nothrow_t;
using std::size_t;

// The limit above which requests are rejected here, because a sanitizer would end the program
// instead.
constexpr size_t kMost = size_t{1} << 40;

std::atomic<long> count{0};

void* take_quietly(size_t bytes, size_t alignment = alignof(std::max_align_t)) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  if (bytes > kMost) return nullptr;
  void* memory = nullptr;
  const bool taken = posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) == 0;
  return taken ? memory : nullptr;
}

void* take(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  void* const memory = take_quietly(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

long qkv::test::allocations() noexcept { return count.load(std::memory_order_relaxed); }

void* operator new(size_t n) { return take(n); }
void* operator new[](size_t n) { return take(n); }
void* operator new(size_t n, align_val_t a) { return take(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, align_val_t a) { return take(n, static_cast<size_t>(a)); }
void* operator new(size_t n, const nothrow_t&) noexcept { return take_quietly(n); }
void* operator new[](size_t n, const nothrow_t&) noexcept { return take_quietly(n); }
void* operator new(size_t n, align_val_t a, const nothrow_t&) noexcept {
  return take_quietly(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, align_val_t a, const nothrow_t&) noexcept {
  return take_quietly(n, static_cast<size_t>(a));
}

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, align_val_t, const nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, align_val_t, const nothrow_t&) noexcept { std::free(p); }
