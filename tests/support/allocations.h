// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_ALLOCATIONS_H_
#define QKV_TESTS_SUPPORT_ALLOCATIONS_H_

// Link allocations.cc to count every operator new of the program, on all threads. More than 1 TiB
// at once is refused with std::bad_alloc, also under a sanitizer.
namespace qkv::test {

// How many there were since the program began.
long allocations() noexcept;

// How many there were during f().
template <class F>
long allocations_of(const F& f) {
  const long before = allocations();
  f();
  return allocations() - before;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_ALLOCATIONS_H_
