// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_KV_CACHE_STATE_H_
#define QKV_ATTENTION_KV_CACHE_STATE_H_

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "core/growing_memory.h"
#include "core/message.h"

// What a cache holds, and the steps that its functions are made of. Only what reserves throws.
namespace qkv {
namespace attn {

inline constexpr std::string_view kMakeCache = "KvCache";
inline constexpr Index kMostSize = std::numeric_limits<Index>::max();

inline Index pages_of(Index keys, Index page) { return keys / page + (keys % page != 0 ? 1 : 0); }

// Elements of a row of `width` channels: of q8, blocks.
inline Index columns_of(DType dtype, Index width) {
  return dtype == DType::kQ8 ? width / BlockQ8::kNumbers : width;
}

}  // namespace attn

struct KvCache::State {
  explicit State(const KvCacheSizes& given)  // checked
      : sizes(given),
        key_bytes(page_bytes(sizes.D)),
        value_bytes(page_bytes(sizes.E)),
        lengths(static_cast<std::size_t>(sizes.B)),
        first_keys(static_cast<std::size_t>(sizes.B)) {
    if (sizes.window > 0) {
      ring = attn::pages_of(sizes.window - 1 + sizes.queries, sizes.page) + 1;
    }
  }

  // Of one page of rows of `width` numbers. Throws Error if that is too much.
  std::size_t page_bytes(Index width) const {
    const Dims shape{sizes.page, sizes.G, columns(width)};
    const Index count = element_count(shape);
    const auto size = static_cast<Index>(size_of(sizes.dtype));
    if (count > attn::kMostSize / size) {
      throw Error(
          attn::kMakeCache, "sizes",
          core::text("make pages [page,G,.] = ", to_string(shape), " of more than 2^63 bytes"));
    }
    return static_cast<std::size_t>(count * size);
  }

  Index columns(Index width) const { return attn::columns_of(sizes.dtype, width); }
  Index& length(Index b) { return lengths[static_cast<std::size_t>(b)]; }
  Index& first_key(Index b) { return first_keys[static_cast<std::size_t>(b)]; }
  Index& named(Index b, Index n) { return tables[static_cast<std::size_t>(b * table_pages + n)]; }
  Index& users(Index page) { return page_users[static_cast<std::size_t>(page)]; }
  Index page_count() const { return static_cast<Index>(page_users.size()); }
  void expect_entry(std::string_view function, const char* name, Index entry) const {
    if (entry >= 0 && entry < sizes.B) return;
    throw Error(function, name, core::text("must be in 0 to B-1 = ", sizes.B - 1, ", got ", entry));
  }

  // The first key that is kept once entry b has `keys` keys: the first of a page.
  Index first_key_after(Index b, Index keys) {
    if (ring == 0) return 0;
    const Index pages = attn::pages_of(keys, sizes.page);
    return std::max(first_key(b), std::max<Index>(pages - ring, 0) * sizes.page);
  }
  // Whether entry b appends to a page that others have too.
  bool appends_to_shared(Index b) {
    return length(b) % sizes.page != 0 && users(named(b, length(b) / sizes.page)) > 1;
  }
  // How many pages it takes at most.
  Index wanted_pages(Index b, Index added) {
    const Index keys = length(b) + added;
    const Index begin = std::max(length(b), first_key_after(b, keys));
    return attn::pages_of(keys, sizes.page) - attn::pages_of(begin, sizes.page) +
           (appends_to_shared(b) ? 1 : 0);
  }

  // After these, taking so many pages and writing so long tables cannot fail.
  void reserve_pages(Index wanted) {
    const Index missing = wanted - static_cast<Index>(free_pages.size());
    if (missing <= 0) return;
    const Index count = page_count() + std::max(missing, page_count());  // at least twice as many
    if (count > attn::kMostSize / static_cast<Index>(std::max(key_bytes, value_bytes))) {
      throw std::bad_alloc();
    }
    key_memory.grow(static_cast<std::size_t>(count) * key_bytes);
    value_memory.grow(static_cast<std::size_t>(count) * value_bytes);
    free_pages.reserve(static_cast<std::size_t>(count));
    const Index old = page_count();
    page_users.resize(static_cast<std::size_t>(count));
    for (Index page = count - 1; page >= old; --page) free_pages.push_back(page);
  }
  void reserve_tables(Index pages) {
    if (pages <= table_pages) return;
    if (pages > attn::kMostSize / sizes.B / 2) throw std::bad_alloc();
    const Index more = std::max(pages, 2 * table_pages);
    std::vector<Index> wider(static_cast<std::size_t>(sizes.B * more));
    for (Index b = 0; b < sizes.B; ++b) {
      std::copy_n(tables.begin() + b * table_pages, table_pages, wider.begin() + b * more);
    }
    tables = std::move(wider);
    table_pages = more;
  }

  Index take() {
    const Index page = free_pages.back();
    free_pages.pop_back();
    users(page) = 1;
    return page;
  }
  void release(Index b, Index begin, Index end) {
    for (Index n = begin; n < end; ++n) {
      if (--users(named(b, n)) == 0) free_pages.push_back(named(b, n));
    }
  }
  // A page of its own for entry b, with what page n holds.
  void copy_page(Index b, Index n) {
    const Index old = named(b, n);
    const Index page = take();
    std::memcpy(key_memory.data() + static_cast<std::size_t>(page) * key_bytes,
                key_memory.data() + static_cast<std::size_t>(old) * key_bytes, key_bytes);
    std::memcpy(value_memory.data() + static_cast<std::size_t>(page) * value_bytes,
                value_memory.data() + static_cast<std::size_t>(old) * value_bytes, value_bytes);
    --users(old);
    named(b, n) = page;
  }
  // Rows `row` .. of a page, as [1,G,rows,columns].
  View page_rows(const core::GrowingMemory& of, std::size_t bytes, Index width, Index page,
                 Index row, Index rows) const {
    const Index count = columns(width);
    std::byte* const at = of.data() + static_cast<std::size_t>(page) * bytes +
                          static_cast<std::size_t>(row * sizes.G * count) * size_of(sizes.dtype);
    return {at, sizes.dtype, {1, sizes.G, rows, count}, {0, count, sizes.G * count, 1}};
  }
  ConstView pages_view(const core::GrowingMemory& of, Index width) const {
    const Dims shape{page_count(), sizes.page, sizes.G, columns(width)};
    return {of.data(), sizes.dtype, shape, contiguous_strides(shape)};
  }

  // k and v [1,G,T,.], for which all is reserved; numbers are rounded, blocks copied.
  void append(Index b, const ConstView& k, const ConstView& v) {
    const Index old = length(b);
    const Index keys_now = old + k.size(2);
    const Index first = first_key_after(b, keys_now);
    const Index old_pages = attn::pages_of(old, sizes.page);
    const Index dropped = first / sizes.page;
    const bool shared = appends_to_shared(b);
    release(b, first_key(b) / sizes.page, std::min(dropped, old_pages));
    // Keys that came and went at once have no page; tables name one that exists.
    for (Index n = old_pages; n < dropped; ++n) named(b, n) = 0;
    first_key(b) = first;
    for (Index j = std::max(old, first), rows = 0; j < keys_now; j += rows) {
      const Index n = j / sizes.page;
      const Index row = j % sizes.page;
      rows = std::min(sizes.page - row, keys_now - j);
      if (row == 0) {
        named(b, n) = take();
      } else if (shared && j == old) {
        copy_page(b, n);
      }
      const Index page = named(b, n);
      copy(slice(k, 2, j - old, j - old + rows),
           page_rows(key_memory, key_bytes, sizes.D, page, row, rows));
      copy(slice(v, 2, j - old, j - old + rows),
           page_rows(value_memory, value_bytes, sizes.E, page, row, rows));
    }
    length(b) = keys_now;
  }

  const KvCacheSizes sizes;
  const std::size_t key_bytes, value_bytes;      // of a page
  Index ring = 0;                                // most pages of an entry with a window; else 0
  core::GrowingMemory key_memory, value_memory;  // [pages,page,G,.]
  std::vector<Index> page_users;                 // how many entries have each page
  std::vector<Index> free_pages;
  std::vector<Index> tables;  // [B,table_pages]
  Index table_pages = 0;
  std::vector<Index> lengths, first_keys;
};

}  // namespace qkv

#endif  // QKV_ATTENTION_KV_CACHE_STATE_H_
