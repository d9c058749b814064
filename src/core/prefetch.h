// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_PREFETCH_H_
#define QKV_CORE_PREFETCH_H_

namespace qkv::core {

// Prefetches the cache line at p into the second-level cache, to be read soon or, with kWrite, to
// be written. The empty asm statement keeps the prefetch: gcc 12 takes a function that only
// prefetches for one without effects, and omits its calls.
enum class Access { kRead, kWrite };
template <Access kAccess = Access::kRead>
inline void prefetch(const void* p) {
  __builtin_prefetch(p, kAccess == Access::kWrite ? 1 : 0, 2);
  asm volatile("");
}

}  // namespace qkv::core

#endif  // QKV_CORE_PREFETCH_H_
