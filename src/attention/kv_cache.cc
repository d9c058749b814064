// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "core/growing_memory.h"
#include "core/message.h"
#include "core/overlap.h"

namespace qkv {
namespace {

using core::GrowingMemory;
using core::text;

constexpr std::string_view kMake = "KvCache";
constexpr std::string_view kAppend = "KvCache::append";
constexpr Index kPageMultiple = 16;  // as in resolve_pages.cc
constexpr Index kMostSize = std::numeric_limits<Index>::max();

Index pages_of(Index keys, Index page) { return keys / page + (keys % page != 0 ? 1 : 0); }

void expect_at_least(const char* name, Index came, Index least) {
  if (came >= least) return;
  throw Error(kMake, name, text("must be ", least, " or more, got ", came));
}

KvCacheSizes checked(const KvCacheSizes& sizes) {
  if (!is_real(sizes.dtype)) {
    throw Error(kMake, "sizes.dtype",
                text("must be float32, float64, bfloat16 or float16, got ", name_of(sizes.dtype)),
                ErrorKind::kType);
  }
  expect_at_least("sizes.B", sizes.B, 1);
  expect_at_least("sizes.G", sizes.G, 1);
  expect_at_least("sizes.D", sizes.D, 1);
  expect_at_least("sizes.E", sizes.E, 1);
  if (sizes.page < 1 || sizes.page % kPageMultiple != 0) {
    throw Error(kMake, "sizes.page",
                text("must be a multiple of ", kPageMultiple, ", got ", sizes.page));
  }
  expect_at_least("sizes.window", sizes.window, 0);
  if (sizes.window > 0) expect_at_least("sizes.queries", sizes.queries, 1);
  if (sizes.window > 0 && sizes.queries > kMostSize - sizes.window) {
    throw Error(
        kMake, "sizes.queries",
        text("is ", sizes.queries, " with window = ", sizes.window, ": more than 2^63 keys"));
  }
  return sizes;
}

}  // namespace

struct KvCache::State {
  explicit State(const KvCacheSizes& given)
      : sizes(checked(given)),
        key_bytes(page_bytes(sizes.D)),
        value_bytes(page_bytes(sizes.E)),
        lengths(static_cast<std::size_t>(sizes.B)),
        first_keys(static_cast<std::size_t>(sizes.B)) {
    if (sizes.window > 0) {
      ring = pages_of(sizes.window - 1 + sizes.queries, sizes.page) + 1;
    }
  }

  // Of one page of rows of `width` numbers. Throws Error if that is too much.
  std::size_t page_bytes(Index width) const {
    const Index count = element_count({sizes.page, sizes.G, width});
    const auto size = static_cast<Index>(size_of(sizes.dtype));
    if (count > kMostSize / size) {
      throw Error(kMake, "sizes",
                  text("make pages [page,G,.] = ", to_string({sizes.page, sizes.G, width}),
                       " of more than 2^63 bytes"));
    }
    return static_cast<std::size_t>(count * size);
  }

  Index& length(Index b) { return lengths[static_cast<std::size_t>(b)]; }
  Index& first_key(Index b) { return first_keys[static_cast<std::size_t>(b)]; }
  Index& named(Index b, Index n) { return tables[static_cast<std::size_t>(b * table_pages + n)]; }
  Index& users(Index page) { return page_users[static_cast<std::size_t>(page)]; }
  Index page_count() const { return static_cast<Index>(page_users.size()); }
  void expect_entry(std::string_view function, const char* name, Index entry) const {
    if (entry >= 0 && entry < sizes.B) return;
    throw Error(function, name, text("must be in 0 to B-1 = ", sizes.B - 1, ", got ", entry));
  }

  // The first key that is kept once entry b has `keys` keys: the first of a page.
  Index first_key_after(Index b, Index keys) {
    if (ring == 0) return 0;
    const Index pages = pages_of(keys, sizes.page);
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
    return pages_of(keys, sizes.page) - pages_of(begin, sizes.page) +
           (appends_to_shared(b) ? 1 : 0);
  }

  // After these, taking so many pages and writing so long tables cannot fail.
  void reserve_pages(Index wanted) {
    const Index missing = wanted - static_cast<Index>(free_pages.size());
    if (missing <= 0) return;
    const Index count = page_count() + std::max(missing, page_count());  // at least twice as many
    if (count > kMostSize / static_cast<Index>(std::max(key_bytes, value_bytes))) {
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
    if (pages > kMostSize / sizes.B / 2) throw std::bad_alloc();
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
  // Rows `row` .. of a page, as [1,G,rows,width].
  View page_rows(const GrowingMemory& of, std::size_t bytes, Index width, Index page, Index row,
                 Index rows) const {
    std::byte* const at = of.data() + static_cast<std::size_t>(page) * bytes +
                          static_cast<std::size_t>(row * sizes.G * width) * size_of(sizes.dtype);
    return {at, sizes.dtype, {1, sizes.G, rows, width}, {0, width, sizes.G * width, 1}};
  }
  ConstView pages_view(const GrowingMemory& of, Index width) const {
    const Dims shape{page_count(), sizes.page, sizes.G, width};
    return {of.data(), sizes.dtype, shape, contiguous_strides(shape)};
  }

  // k and v [1,G,T,.], for which all is reserved.
  void append(Index b, const ConstView& k, const ConstView& v) {
    const Index old = length(b);
    const Index keys_now = old + k.size(2);
    const Index first = first_key_after(b, keys_now);
    const Index old_pages = pages_of(old, sizes.page);
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
  const std::size_t key_bytes, value_bytes;  // of a page
  Index ring = 0;                            // most pages of an entry with a window; else 0
  GrowingMemory key_memory, value_memory;    // [pages,page,G,.]
  std::vector<Index> page_users;             // how many entries have each page
  std::vector<Index> free_pages;
  std::vector<Index> tables;  // [B,table_pages]
  Index table_pages = 0;
  std::vector<Index> lengths, first_keys;
};

KvCache::KvCache(const KvCacheSizes& sizes) : state_(std::make_unique<State>(sizes)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

void KvCache::append(const ConstView& k, const ConstView& v) {
  std::vector<Index> all(state_->lengths.size());
  std::iota(all.begin(), all.end(), Index{0});
  append(k, v, all);
}

void KvCache::append(const ConstView& k, const ConstView& v, std::span<const Index> entries) {
  State& s = *state_;
  const auto count = static_cast<Index>(entries.size());
  std::vector<bool> seen(static_cast<std::size_t>(s.sizes.B));
  for (const Index b : entries) {
    s.expect_entry(kAppend, "entries", b);
    if (seen[static_cast<std::size_t>(b)]) {
      throw Error(kAppend, "entries", text("must be different, got ", b, " twice"));
    }
    seen[static_cast<std::size_t>(b)] = true;
  }
  const auto check = [&](const char* name, const ConstView& x, const char* letters, Index T,
                         Index width) {
    if (!x.given()) throw Error(kAppend, name, "is absent");
    if (!is_real(x.dtype())) {
      throw Error(kAppend, name,
                  text("must be float32, float64, bfloat16 or float16, got ", describe(x)),
                  ErrorKind::kType);
    }
    if (x.rank() != 4 || x.shape() != Dims{count, s.sizes.G, T, width}) {
      throw Error(kAppend, name,
                  text("must have the shape ", letters, " = ",
                       to_string({count, s.sizes.G, T, width}), ", got ", describe(x)));
    }
    if (core::may_overlap(x, s.pages_view(s.key_memory, s.sizes.D)) ||
        core::may_overlap(x, s.pages_view(s.value_memory, s.sizes.E))) {
      throw Error(kAppend, name, "must not lie in the cache");
    }
  };
  const Index added = k.rank() == 4 ? k.size(2) : 0;
  check("k", k, "[n,G,T,D]", added, s.sizes.D);
  check("v", v, "[n,G,T,E]", added, s.sizes.E);
  Index wanted = 0;
  Index table_pages = 0;
  for (const Index b : entries) {
    if (added > kMostSize - s.length(b)) {
      throw Error(
          kAppend, "k",
          text("has T = ", added, " keys for entry ", b, " of ", s.length(b), ": more than 2^63"));
    }
    const Index more = s.wanted_pages(b, added);
    if (more > kMostSize - wanted) throw std::bad_alloc();
    wanted += more;
    table_pages = std::max(table_pages, pages_of(s.length(b) + added, s.sizes.page));
  }
  s.reserve_pages(wanted);
  s.reserve_tables(table_pages);
  for (Index n = 0; n < count && added > 0; ++n) {
    s.append(entries[static_cast<std::size_t>(n)], slice(k, 0, n, n + 1), slice(v, 0, n, n + 1));
  }
}

void KvCache::truncate(Index entry, Index length) {
  constexpr std::string_view kTruncate = "KvCache::truncate";
  State& s = *state_;
  s.expect_entry(kTruncate, "entry", entry);
  const Index first = s.first_key(entry);
  const Index most = s.length(entry);
  if (length < 0 || length > most) {
    throw Error(kTruncate, "length",
                text("must be in 0 to ", most, ", the keys of entry ", entry, ", got ", length));
  }
  if (length > 0 && length < first) {
    throw Error(kTruncate, "length",
                text("must be 0, or ", first, " or more, because the window has dropped the keys ",
                     "of entry ", entry, " before; got ", length));
  }
  const Index page = s.sizes.page;
  s.release(entry, std::max(pages_of(length, page), first / page), pages_of(most, page));
  s.length(entry) = length;
  if (length == 0) s.first_key(entry) = 0;
}

void KvCache::reset() {
  for (Index b = 0; b < state_->sizes.B; ++b) truncate(b, 0);
}

void KvCache::reorder(std::span<const Index> from) {
  constexpr std::string_view kReorder = "KvCache::reorder";
  State& s = *state_;
  if (static_cast<Index>(from.size()) != s.sizes.B) {
    throw Error(kReorder, "from",
                text("must name an entry for each of B = ", s.sizes.B, ", got ", from.size()));
  }
  for (const Index b : from) s.expect_entry(kReorder, "from", b);
  std::vector<Index> tables(s.tables.size());
  std::vector<Index> lengths(s.lengths.size());
  std::vector<Index> first_keys(s.lengths.size());
  const Index page = s.sizes.page;
  for (std::size_t b = 0; b < from.size(); ++b) {
    const Index old = from[b];
    lengths[b] = s.length(old);
    first_keys[b] = s.first_key(old);
    std::copy_n(s.tables.begin() + old * s.table_pages, s.table_pages,
                tables.begin() + static_cast<Index>(b) * s.table_pages);
    for (Index n = first_keys[b] / page; n < pages_of(lengths[b], page); ++n) {
      ++s.users(s.named(old, n));
    }
  }
  for (Index b = 0; b < s.sizes.B; ++b) {
    s.release(b, s.first_key(b) / page, pages_of(s.length(b), page));
  }
  s.tables = std::move(tables);
  s.lengths = std::move(lengths);
  s.first_keys = std::move(first_keys);
}

Inputs KvCache::inputs(const ConstView& q) const {
  const State& s = *state_;
  // As long as the longest entry's, and no longer.
  const Index most = *std::max_element(s.lengths.begin(), s.lengths.end());
  return {.q = q,
          .k = s.pages_view(s.key_memory, s.sizes.D),
          .v = s.pages_view(s.value_memory, s.sizes.E),
          .block_tables = {s.tables.data(),
                           DType::kInt64,
                           {s.sizes.B, pages_of(most, s.sizes.page)},
                           {s.table_pages, 1}},
          .context_lens = s.lengths};
}

void KvCache::attention(const ConstView& q, const Options& options, const Outputs& outputs) const {
  Context context;
  attention(q, options, outputs, context);
}

void KvCache::attention(const ConstView& q, const Options& options, const Outputs& outputs,
                        Context& context) const {
  constexpr std::string_view kCacheAttention = "KvCache::attention";
  State& s = *state_;
  if (s.ring == 0 || q.rank() != 4) return qkv::attention(inputs(q), options, outputs, context);
  if (!std::holds_alternative<BottomRight>(options.diagonal)) {
    throw Error(kCacheAttention, "options.diagonal",
                "must be BottomRight: a cache with a window keeps only the last keys");
  }
  for (Index b = 0; b < s.sizes.B; ++b) {
    const Index first = s.first_key(b);
    const Index seen = s.length(b) - q.size(2) - (s.sizes.window - 1);
    if (first == 0 || seen >= first) continue;
    throw Error(
        kCacheAttention, "q",
        text("has Tq = ", q.size(2), ", whose window of ", s.sizes.window,
             " keys begins before key ", first, ", the first that entry ", b, " of ", s.length(b),
             " keys still has; the cache is made for queries = ", s.sizes.queries));
  }
  Options with_window = options;
  with_window.masks.emplace_back(Window{s.sizes.window - 1, -1});
  qkv::attention(inputs(q), with_window, outputs, context);
}

const KvCacheSizes& KvCache::sizes() const noexcept { return state_->sizes; }
std::span<const Index> KvCache::lengths() const noexcept { return state_->lengths; }
Index KvCache::first_key(Index entry) const {
  state_->expect_entry("KvCache::first_key", "entry", entry);
  return state_->first_key(entry);
}
Index KvCache::used_pages() const noexcept {
  return state_->page_count() - static_cast<Index>(state_->free_pages.size());
}
std::size_t KvCache::bytes() const noexcept {
  const State& s = *state_;
  return s.key_memory.bytes() + s.value_memory.bytes() + s.tables.capacity() * sizeof(Index);
}

}  // namespace qkv
