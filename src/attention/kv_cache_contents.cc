// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "attention/kv_cache_state.h"
#include "core/message.h"

// Conversion of a cache to arrays and back.
namespace qkv {
namespace {

using attn::kMakeCache;
using attn::pages_of;
using core::text;

constexpr Index kNoPage = -1;

// A page in use, and how many of its rows hold keys of some entry.
struct UsedPage {
  Index page = 0;
  Index rows = 0;
};

// Copies the first `rows` rows of each used page to the next page of `to`, whose other rows stay 0.
void copy_pages(const std::vector<UsedPage>& used, const std::byte* from, std::size_t page_bytes,
                Index page, const View& to) {
  auto* target = static_cast<std::byte*>(to.data());
  const std::size_t row_bytes = page_bytes / static_cast<std::size_t>(page);
  for (const UsedPage& one : used) {
    std::memcpy(target, from + static_cast<std::size_t>(one.page) * page_bytes,
                static_cast<std::size_t>(one.rows) * row_bytes);
    target += page_bytes;
  }
}

// ---- checks of arrays, which may come from a file -----------------------------------------------

void expect(const char* name, const ConstView& x, DType dtype, const Dims& shape,
            const char* letters) {
  if (x.given() && x.dtype() == dtype && x.shape() == shape && x.is_contiguous()) return;
  throw Error(kMakeCache, name,
              text("must be ", name_of(dtype), " ", letters, " = ", to_string(shape), ", got ",
                   x.given() ? describe(x) : "none"),
              !x.given() || x.dtype() == dtype ? ErrorKind::kValue : ErrorKind::kType);
}

// The pages of an entry: columns begin .. end - 1 of its row in block_tables.
struct Pages {
  Index begin = 0;
  Index end = 0;
};

Pages checked_pages(Index b, Index length, Index first, const KvCacheSizes& sizes, Index ring) {
  if (length < 0) {
    throw Error(kMakeCache, "lengths", text("must be 0 or more, got ", length, " of entry ", b));
  }
  const Index end = pages_of(length, sizes.page);
  const auto refuse = [&](const std::string& rule) {
    throw Error(kMakeCache, "first_keys",
                text("must be ", rule, ", got ", first, " of entry ", b, " of ", length, " keys"));
  };
  if (ring == 0 && first != 0) refuse("0 without a window");
  if (first < 0 || first > length || first % sizes.page != 0) {
    refuse(text("a multiple of the page, ", sizes.page, ", and at most the length"));
  }
  if (length == 0 && first != 0) refuse("0 where there is no key");
  if (ring > 0 && end - first / sizes.page > ring) {
    refuse(text("late enough that at most ", ring, " pages remain, as many as the window needs"));
  }
  return {first / sizes.page, end};
}

}  // namespace

KvCacheContents KvCache::contents() const {
  State& s = *state_;
  const KvCacheSizes& sizes = s.sizes;
  const Index longest = *std::max_element(s.lengths.begin(), s.lengths.end());
  const Index table_pages = pages_of(longest, sizes.page);
  KvCacheContents to{.sizes = sizes,
                     .block_tables = Tensor(DType::kInt64, {sizes.B, table_pages}),
                     .lengths = contiguous(ConstView(s.lengths)),
                     .first_keys = contiguous(ConstView(s.first_keys))};
  std::vector<UsedPage> used;
  std::unordered_map<Index, Index> numbers;  // index of each page in `used`
  Index* entry = to.block_tables.values<Index>().data();
  for (Index b = 0; b < sizes.B; ++b, entry += table_pages) {
    std::fill_n(entry, table_pages, kNoPage);
    for (Index n = s.first_key(b) / sizes.page; n < pages_of(s.length(b), sizes.page); ++n) {
      const auto count = static_cast<Index>(used.size());
      const auto [number, is_new] = numbers.emplace(s.page_at(b, n), count);
      if (is_new) used.push_back({number->first, 0});
      Index& rows = used[static_cast<std::size_t>(number->second)].rows;
      rows = std::max(rows, std::min(sizes.page, s.length(b) - n * sizes.page));
      entry[n] = number->second;
    }
  }
  // In a cache made from arrays, entries may have keys but no page. The arrays then get page 0 all
  // the same, because State::tables refers to it where an entry has no page.
  if (used.empty() && table_pages > 0) used.push_back({0, 0});
  const auto count = static_cast<Index>(used.size());
  to.k_pages = Tensor(sizes.dtype, {count, sizes.page, sizes.G, s.columns(sizes.D)});
  to.v_pages = Tensor(sizes.dtype, {count, sizes.page, sizes.G, s.columns(sizes.E)});
  copy_pages(used, s.key_memory.data(), s.key_bytes, sizes.page, to.k_pages);
  copy_pages(used, s.value_memory.data(), s.value_bytes, sizes.page, to.v_pages);
  return to;
}

KvCache::KvCache(const KvCacheContents& from) : KvCache(from.sizes) {
  State& s = *state_;
  const KvCacheSizes& sizes = s.sizes;
  expect("lengths", from.lengths, DType::kInt64, {sizes.B}, "[B]");
  expect("first_keys", from.first_keys, DType::kInt64, {sizes.B}, "[B]");
  const auto lengths = from.lengths.values<Index>();
  const auto first_keys = from.first_keys.values<Index>();
  std::vector<Pages> pages;
  Index table_pages = 0;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    pages.push_back(checked_pages(static_cast<Index>(b), lengths[b], first_keys[b], sizes, s.ring));
    table_pages = std::max(table_pages, pages.back().end);
  }
  expect("block_tables", from.block_tables, DType::kInt64, {sizes.B, table_pages}, "[B,pages]");
  const Index count = from.k_pages.rank() == 4 ? from.k_pages.size(0) : 0;
  const bool q8 = sizes.dtype == DType::kQ8;
  expect("k_pages", from.k_pages, sizes.dtype, {count, sizes.page, sizes.G, s.columns(sizes.D)},
         q8 ? "[pages,page,G,D/32]" : "[pages,page,G,D]");
  expect("v_pages", from.v_pages, sizes.dtype, {count, sizes.page, sizes.G, s.columns(sizes.E)},
         q8 ? "[pages,page,G,E/32]" : "[pages,page,G,E]");

  if (count == 0 && table_pages > 0) {
    throw Error(kMakeCache, "k_pages", text("must have a page for block_tables, got none"));
  }
  s.reserve_pages(count);  // exactly as many as the arrays have
  s.reserve_tables(table_pages);
  const Index* entry = from.block_tables.values<Index>().data();
  for (Index b = 0; b < sizes.B; ++b, entry += table_pages) {
    const auto place = static_cast<std::size_t>(b);
    for (Index n = 0; n < table_pages; ++n) {
      const bool named = n >= pages[place].begin && n < pages[place].end;
      if (named ? entry[n] >= 0 && entry[n] < count : entry[n] == kNoPage) {
        s.page_at(b, n) = named ? entry[n] : 0;
        if (named) ++s.users(entry[n]);
        continue;
      }
      throw Error(kMakeCache, "block_tables",
                  text(named ? text("must name one of ", count, " pages")
                             : "must be -1 where there is no page",
                       ", got ", entry[n], " for page ", n, " of entry ", b));
    }
    s.length(b) = lengths[place];
    s.first_key(b) = first_keys[place];
  }
  s.free_pages.clear();
  for (Index page = s.page_count() - 1; page >= 0; --page) {
    if (s.users(page) > 0) continue;
    const bool is_spare = count == 1 && table_pages > 0;
    if (!is_spare) {
      throw Error(kMakeCache, "block_tables",
                  text("must name every page, but no entry names page ", page));
    }
    s.free_pages.push_back(page);
  }
  if (count == 0) return;
  std::memcpy(s.key_memory.data(), from.k_pages.view().data(),
              static_cast<std::size_t>(count) * s.key_bytes);
  std::memcpy(s.value_memory.data(), from.v_pages.view().data(),
              static_cast<std::size_t>(count) * s.value_bytes);
}

}  // namespace qkv
