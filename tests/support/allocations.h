// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_ALLOCATIONS_H_
#define QKV_TESTS_SUPPORT_ALLOCATIONS_H_

// Link allocations.cc to count every operator new of the program, on all threads. A request for
// more than 1 TiB is rejected with std::bad_alloc, even under a sanitizer. Tensors of 128 KiB and
// more are not counted, because their memory is calloc's.
namespace qkv::test {

// Returns the number of allocations since the program started.
long allocations() noexcept;

// Returns the number of allocations during f().
template <class F>
long allocations_of(const F& f) {
  const long before = allocations();
  f();
  return allocations() - before;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_ALLOCATIONS_H_
