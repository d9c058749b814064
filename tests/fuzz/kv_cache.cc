// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <qkv/app/kv_cache_file.h>
#include <qkv/tensor.h>

#include "tests/fuzz/memory_file.h"

using qkv::Index;

namespace {

bool same(const qkv::Tensor& a, const qkv::Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const auto* x = static_cast<const unsigned char*>(a.view().data());
  const auto* y = static_cast<const unsigned char*>(b.view().data());
  return std::equal(x, x + static_cast<std::size_t>(a.element_count()) * size_of(a.dtype()), y);
}

void require_same(const qkv::KvCache& a, const qkv::KvCache& b) {
  using Contents = qkv::KvCacheContents;
  const Contents x = a.contents(), y = b.contents();
  for (const auto tensor : {&Contents::k_pages, &Contents::v_pages, &Contents::block_tables,
                            &Contents::lengths, &Contents::first_keys}) {
    qkv::fuzz::require(same(x.*tensor, y.*tensor));
  }
  qkv::fuzz::require(a.used_pages() == b.used_pages());
}

}  // namespace

// A cache that the reader accepts can be used, copied, and built again from its contents.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    qkv::KvCache cache = qkv::app::read_kv_cache(qkv::fuzz::memory_file(data, size));
    const qkv::KvCacheSizes& n = cache.sizes();
    require_same(qkv::KvCache(cache.contents()), cache);
    constexpr Index kMost = 64;  // larger caches cost too much time and memory
    if (n.B > kMost || n.G > kMost || n.D > kMost || n.E > kMost || n.page > kMost) return 0;
    const qkv::Tensor k(qkv::DType::kFloat32, {n.B, n.G, 3, n.D});
    const qkv::Tensor v(qkv::DType::kFloat32, {n.B, n.G, 3, n.E});
    for (const Index length : cache.lengths()) {
      if (length > kMost * kMost) return 0;
    }
    qkv::KvCache copied(cache);
    require_same(copied, cache);
    cache.append(k, v);
    copied.append(k, v);
    require_same(copied, cache);
    cache.reorder(std::vector<Index>(static_cast<std::size_t>(n.B), n.B - 1));
    cache.append(k, v);
    cache.reset();
    qkv::fuzz::require(cache.used_pages() == 0);
  } catch (const qkv::app::InputError&) {
  }
  return 0;
}
