// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <qkv/app/kv_cache_file.h>
#include <qkv/tensor.h>

#include "tests/fuzz/memory_file.h"

using qkv::Index;

// A cache that the reader accepts can be used and copied, and its contents make the same cache.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    qkv::KvCache cache = qkv::app::read_kv_cache(qkv::fuzz::memory_file(data, size));
    const qkv::KvCacheSizes& of = cache.sizes();
    const qkv::KvCacheContents contents = cache.contents();
    const qkv::KvCache again(contents);
    qkv::fuzz::require(again.used_pages() == cache.used_pages());
    constexpr Index kMost = 64;
    if (of.B > kMost || of.G > kMost || of.D > kMost || of.E > kMost || of.page > kMost) return 0;
    const qkv::Tensor k(qkv::DType::kFloat32, {of.B, of.G, 3, of.D});
    const qkv::Tensor v(qkv::DType::kFloat32, {of.B, of.G, 3, of.E});
    for (const Index length : cache.lengths()) {
      if (length > kMost * kMost) return 0;
    }
    qkv::KvCache copied(cache);
    qkv::fuzz::require(copied.used_pages() == cache.used_pages());
    cache.append(k, v);
    copied.append(k, v);
    qkv::fuzz::require(copied.used_pages() == cache.used_pages());
    cache.reorder(std::vector<Index>(static_cast<std::size_t>(of.B), of.B - 1));
    cache.append(k, v);
    cache.reset();
    qkv::fuzz::require(cache.used_pages() == 0);
  } catch (const qkv::app::InputError&) {
  }
  return 0;
}
