// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_KV_CACHE_STATE_H_
#define QKV_ATTENTION_KV_CACHE_STATE_H_

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "core/growing_memory.h"
#include "core/integers.h"
#include "core/message.h"
#include "core/stop.h"

// The contents of a cache, and the steps that its functions are made of. Only checks and steps that
// reserve memory or can be stopped throw.
namespace qkv {
namespace attn {

inline constexpr std::string_view kMakeCache = "KvCache";
inline constexpr Index kMostSize = std::numeric_limits<Index>::max();

inline Index pages_of(Index keys, Index page) { return keys / page + (keys % page != 0 ? 1 : 0); }

// The number of elements of a row of `width` channels; an element of q8 is a block of 32.
inline Index columns_of(DType dtype, Index width) {
  return dtype == DType::kQ8 ? width / BlockQ8::kNumbers : width;
}

// Copies bytes in pieces and polls before each; a piece takes about as long as kStepsBetweenStops
// steps of a loop.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes,
                       const core::StopPoint& stop) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t done = 0; done < bytes; done += kPiece) {
    stop();
    std::memcpy(to + done, from + done, std::min(kPiece, bytes - done));
  }
}

}  // namespace attn

struct KvCache::State {
  explicit State(const KvCacheSizes& given)  // `given` has been checked
      : sizes(given),
        key_bytes(page_bytes(sizes.D)),
        value_bytes(page_bytes(sizes.E)),
        lengths(static_cast<std::size_t>(sizes.B)),
        first_keys(static_cast<std::size_t>(sizes.B)) {
    if (sizes.window > 0) {
      ring = attn::pages_of(sizes.window - 1 + sizes.queries, sizes.page) + 1;
    }
  }

  // Copies the pages to new memory of equal capacity, where they have the same indices.
  State(const State& other) : State(other.sizes) {
    key_memory.grow(other.key_memory.bytes());
    value_memory.grow(other.value_memory.bytes());
    page_users = other.page_users;
    free_pages.reserve(page_users.size());  // so that releasing a page allocates nothing
    free_pages = other.free_pages;
    tables = other.tables;
    table_pages = other.table_pages;
    lengths = other.lengths;
    first_keys = other.first_keys;
    for (Index page = 0; page < page_count(); ++page) {
      if (users(page) == 0) continue;
      std::memcpy(key_page(page), other.key_page(page), key_bytes);
      std::memcpy(value_page(page), other.value_page(page), value_bytes);
    }
  }
  State& operator=(const State&) = delete;

  // Bytes of one page of rows of `width` numbers. Throws Error if they exceed kMostSize.
  std::size_t page_bytes(Index width) const {
    const Dims shape{sizes.page, sizes.G, columns(width)};
    const auto size = static_cast<Index>(size_of(sizes.dtype));
    std::optional<Index> count = core::checked_multiply(shape[0], shape[1]);
    if (count) count = core::checked_multiply(*count, shape[2]);
    if (!count || *count > attn::kMostSize / size) {
      throw Error(
          attn::kMakeCache, "sizes",
          core::text("make pages [page,G,.] = ", to_string(shape), " of more than 2^63 bytes"));
    }
    return static_cast<std::size_t>(*count * size);
  }

  Index columns(Index width) const { return attn::columns_of(sizes.dtype, width); }
  // The number of elements of a row of a page: one key (or value) of all key heads.
  Index key_row() const { return sizes.G * columns(sizes.D); }
  Index value_row() const { return sizes.G * columns(sizes.E); }
  Index& length(Index b) { return lengths[static_cast<std::size_t>(b)]; }
  Index& first_key(Index b) { return first_keys[static_cast<std::size_t>(b)]; }
  Index& page_at(Index b, Index n) { return tables[static_cast<std::size_t>(b * table_pages + n)]; }
  Index& users(Index page) { return page_users[static_cast<std::size_t>(page)]; }
  Index page_count() const { return static_cast<Index>(page_users.size()); }
  std::byte* key_page(Index page) const {
    return key_memory.data() + static_cast<std::size_t>(page) * key_bytes;
  }
  std::byte* value_page(Index page) const {
    return value_memory.data() + static_cast<std::size_t>(page) * value_bytes;
  }
  void expect_entry(std::string_view function, const char* name, Index entry) const {
    if (entry >= 0 && entry < sizes.B) return;
    throw Error(function, name, core::text("must be in 0 to B-1 = ", sizes.B - 1, ", got ", entry));
  }

  std::vector<Index> all_entries() const {
    std::vector<Index> all(lengths.size());
    std::iota(all.begin(), all.end(), Index{0});
    return all;
  }

  // The first key that is kept when entry b has `keys` keys. A page begins with it.
  Index first_key_after(Index b, Index keys) {
    if (ring == 0) return 0;
    const Index pages = attn::pages_of(keys, sizes.page);
    return std::max(first_key(b), std::max<Index>(pages - ring, 0) * sizes.page);
  }
  // Whether entry b would append to a page that other entries share.
  bool appends_to_shared(Index b) {
    return length(b) % sizes.page != 0 && users(page_at(b, length(b) / sizes.page)) > 1;
  }
  // An upper bound of the free pages that are needed to append `added` keys to entry b.
  Index wanted_pages(Index b, Index added) {
    const Index keys = length(b) + added;
    const Index begin = std::max(length(b), first_key_after(b, keys));
    return attn::pages_of(keys, sizes.page) - attn::pages_of(begin, sizes.page) +
           (appends_to_shared(b) ? 1 : 0);
  }

  // After reserve_pages(wanted) and reserve_tables(pages), taking `wanted` pages and writing tables
  // of `pages` columns cannot fail.
  void reserve_pages(Index wanted) {
    const Index missing = wanted - static_cast<Index>(free_pages.size());
    if (missing <= 0) return;
    const Index count = page_count() + std::max(missing, page_count());  // at least doubles
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
    if (pages > attn::kMostSize / Index{sizeof(Index)} / sizes.B / 2) throw std::bad_alloc();
    const Index more = std::max(pages, 2 * table_pages);
    std::vector<Index> wider(static_cast<std::size_t>(sizes.B * more));
    for (Index b = 0; b < sizes.B; ++b) {
      std::copy_n(tables.begin() + b * table_pages, table_pages, wider.begin() + b * more);
    }
    tables = std::move(wider);
    table_pages = more;
  }

  void release(Index b, Index begin, Index end) {
    for (Index n = begin; n < end; ++n) {
      if (--users(page_at(b, n)) == 0) free_pages.push_back(page_at(b, n));
    }
  }
  // Rows row .. row + rows - 1 of the page at address `page`, as a view [1,G,rows,columns].
  View page_rows(std::byte* page, Index width, Index row, Index rows) const {
    const Index count = columns(width);
    std::byte* const at =
        page + static_cast<std::size_t>(row * sizes.G * count) * size_of(sizes.dtype);
    return {at, sizes.dtype, {1, sizes.G, rows, count}, {0, count, sizes.G * count, 1}};
  }
  ConstView pages_view(const core::GrowingMemory& of, Index width) const {
    const Dims shape{page_count(), sizes.page, sizes.G, columns(width)};
    return {of.data(), sizes.dtype, shape, contiguous_strides(shape)};
  }

  // Appending takes two steps. put_rows(), called for each entry, writes where no key is, and may
  // be stopped. take_rows(), then called for each entry in the same order, makes these rows keys.
  // Until then the cache is unchanged. The last free page is used first.

  // The keys and pages that one entry gains.
  struct Growth {
    Index entry = 0;
    Index old = 0;        // number of keys before
    Index keys = 0;       // number of keys afterwards
    Index first = 0;      // the first key that is kept
    bool copies = false;  // whether the entry's last page is shared and has to be copied
  };
  Growth growth_of(Index b, Index added) {
    const Index keys = length(b) + added;
    const Index first = first_key_after(b, keys);
    return {b, length(b), keys, first, added > 0 && first <= length(b) && appends_to_shared(b)};
  }
  // Calls f(n, row, j, rows) for each page of the entry that gains keys: keys j .. j + rows - 1 go
  // to page n of the entry, from row `row` on.
  template <class F>
  void for_each_piece(const Growth& by, const F& f) const {
    for (Index j = std::max(by.old, by.first), rows = 0; j < by.keys; j += rows) {
      const Index row = j % sizes.page;
      rows = std::min(sizes.page - row, by.keys - j);
      f(j / sizes.page, row, j, rows);
    }
  }
  // Writes the rows of k and v [1,G,T,.] to pages: rounds numbers, copies q8 blocks. `spare` is the
  // number of free pages that may be used; returns how many of them are left.
  Index put_rows(const Growth& by, const ConstView& k, const ConstView& v, Index spare,
                 const core::StopPoint& stop) {
    // Number of rows copied between two polls.
    const Index some =
        std::max<Index>(1, core::kStepsBetweenStops / std::max(key_row(), value_row()));
    for_each_piece(by, [&](Index n, Index row, Index j, Index rows) {
      const bool is_new = row == 0 || by.copies;
      const Index page =
          is_new ? free_pages[static_cast<std::size_t>(--spare)] : page_at(by.entry, n);
      if (row > 0 && is_new) {
        const Index old = page_at(by.entry, n);
        attn::copy_bytes(key_page(page), key_page(old), key_bytes, stop);
        attn::copy_bytes(value_page(page), value_page(old), value_bytes, stop);
      }
      for (Index done = 0; done < rows; done += some) {
        stop();
        const Index count = std::min(some, rows - done);
        const Index from = j - by.old + done;
        copy(slice(k, 2, from, from + count),
             page_rows(key_page(page), sizes.D, row + done, count));
        copy(slice(v, 2, from, from + count),
             page_rows(value_page(page), sizes.E, row + done, count));
      }
    });
    return spare;
  }
  // Makes the written rows keys of the entry. Takes pages backwards from pages[left - 1]; returns
  // how many are left.
  Index take_rows(const Growth& by, const std::vector<Index>& pages, Index left) {
    const Index b = by.entry;
    const Index old_pages = attn::pages_of(by.old, sizes.page);
    const Index dropped = by.first / sizes.page;
    release(b, first_key(b) / sizes.page, std::min(dropped, old_pages));
    // Keys that the window drops at once have no page; the table refers to page 0, which exists.
    for (Index n = old_pages; n < dropped; ++n) page_at(b, n) = 0;
    if (by.copies) release(b, old_pages - 1, old_pages);
    for_each_piece(by, [&](Index n, Index row, Index, Index) {
      if (row > 0 && !by.copies) return;
      const Index page = pages[static_cast<std::size_t>(--left)];
      users(page) = 1;
      page_at(b, n) = page;
    });
    first_key(b) = by.first;
    length(b) = by.keys;
    return left;
  }

  const KvCacheSizes sizes;
  const std::size_t key_bytes, value_bytes;  // bytes of a page
  Index ring = 0;  // largest number of pages of an entry with a window; else 0
  core::GrowingMemory key_memory, value_memory;  // [pages,page,G,.]
  std::vector<Index> page_users;                 // [pages]: number of entries that have the page
  std::vector<Index> free_pages;
  std::vector<Index> tables;  // [B,table_pages]: indices of pages
  Index table_pages = 0;
  std::vector<Index> lengths, first_keys;
};

}  // namespace qkv

#endif  // QKV_ATTENTION_KV_CACHE_STATE_H_
