// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_PREFETCH_H_
#define QKV_CORE_PREFETCH_H_

namespace qkv::core {

// Asks for the line of far memory at p, to be read soon or, with kWrite, to be written, for the
// second-level cache. The empty statement keeps it: gcc 12 takes a function that does nothing but
// prefetch for one without effects, and leaves its calls out.
enum class Access { kRead, kWrite };
template <Access kAccess = Access::kRead>
inline void prefetch(const void* p) {
  __builtin_prefetch(p, kAccess == Access::kWrite ? 1 : 0, 2);
  asm volatile("");
}

}  // namespace qkv::core

#endif  // QKV_CORE_PREFETCH_H_
