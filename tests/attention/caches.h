// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_CACHES_H_
#define QKV_TESTS_ATTENTION_CACHES_H_

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

// Comparison of the contents of caches, byte by byte.
namespace qkv::test {

inline std::string bytes_of(const Tensor& x) {
  return {static_cast<const char*>(x.view().data()),
          static_cast<std::size_t>(x.element_count()) * size_of(x.dtype())};
}

inline void expect_equal(const KvCacheContents& x, const KvCacheContents& y) {
  using C = KvCacheContents;
  for (const auto of : {&C::k_pages, &C::v_pages, &C::block_tables, &C::lengths, &C::first_keys}) {
    EXPECT_EQ((x.*of).shape(), (y.*of).shape());
    EXPECT_EQ(bytes_of(x.*of), bytes_of(y.*of));
  }
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_CACHES_H_
