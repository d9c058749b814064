// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_ALLOCATIONS_H_
#define QKV_TESTS_SUPPORT_ALLOCATIONS_H_

// Link allocations.cc to count every operator new of the program, on all threads. More than 1 TiB
// at once is rejected with std::bad_alloc, even under a sanitizer. A Tensor of 128 KiB and more is
// not counted: its memory is calloc's.
namespace qkv::test {

// The number since the program started.
long allocations() noexcept;

// The number during f().
template <class F>
long allocations_of(const F& f) {
  const long before = allocations();
  f();
  return allocations() - before;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_ALLOCATIONS_H_
