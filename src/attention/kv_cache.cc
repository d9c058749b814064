// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <new>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "attention/kv_cache_state.h"
#include "core/head_rows.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/stop.h"
#include "dense/quantize_q8.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

using attn::columns_of;
using attn::kMakeCache;
using attn::kMostSize;
using attn::pages_of;
using core::kPageMultiple;
using core::text;

constexpr std::string_view kAppend = "KvCache::append";

void expect_at_least(const char* name, Index value, Index least) {
  if (value >= least) return;
  throw Error(kMakeCache, name, text("must be ", least, " or more, got ", value));
}

// Throws Error unless `value` is in `least` .. 2^53, which is also the largest reach of a Window.
void expect_in(const char* name, Index value, Index least) {
  if (value >= least && value <= Index{1} << 53) return;
  throw Error(kMakeCache, name, text("must be in ", least, " to 2^53, got ", value));
}

void expect_blocks(const char* name, Index value) {
  if (value % BlockQ8::kNumbers == 0) return;
  throw Error(kMakeCache, name, text("must be a multiple of 32 with q8, got ", value));
}

KvCacheSizes checked(const KvCacheSizes& sizes) {
  if (!is_real(sizes.dtype) && sizes.dtype != DType::kQ8) {
    throw Error(
        kMakeCache, "sizes.dtype",
        text("must be float32, float64, bfloat16, float16 or q8, got ", name_of(sizes.dtype)),
        ErrorKind::kType);
  }
  expect_at_least("sizes.B", sizes.B, 1);
  // A std::vector of that many lengths would throw std::length_error instead.
  if (sizes.B > kMostSize / static_cast<Index>(sizeof(Index))) throw std::bad_alloc();
  expect_at_least("sizes.G", sizes.G, 1);
  expect_at_least("sizes.D", sizes.D, 1);
  expect_at_least("sizes.E", sizes.E, 1);
  if (sizes.dtype == DType::kQ8) {
    expect_blocks("sizes.D", sizes.D);
    expect_blocks("sizes.E", sizes.E);
  }
  if (sizes.page < 1 || sizes.page % kPageMultiple != 0) {
    throw Error(kMakeCache, "sizes.page",
                text("must be a multiple of ", kPageMultiple, ", got ", sizes.page));
  }
  expect_in("sizes.window", sizes.window, 0);
  if (sizes.window > 0) expect_in("sizes.queries", sizes.queries, 1);
  return sizes;
}

// Throws Error unless rows of x's type can be appended. A q8 cache takes q8 blocks and the types
// that quantize_q8() converts; any other cache takes every real type.
void expect_appendable(const char* name, const ConstView& x, DType cache) {
  const bool q8 = cache == DType::kQ8;
  const bool fits =
      q8 ? x.dtype() == DType::kQ8 || (is_real(x.dtype()) && x.dtype() != DType::kFloat64)
         : is_real(x.dtype());
  if (fits) return;
  throw Error(
      kAppend, name,
      text("must be ",
           q8 ? "float32, bfloat16, float16 or q8" : "float32, float64, bfloat16 or float16",
           ", got ", describe(x)),
      ErrorKind::kType);
}

// Returns rows that a cache of `dtype` can copy: x itself, or x quantized to q8 blocks in `memory`.
// Throws Error for numbers that no block can hold, before the cache has changed.
ConstView rows_to_copy(const char* name, const ConstView& x, DType dtype,
                       const core::StopPoint& stop, Tensor& memory) {
  if (dtype != DType::kQ8 || x.dtype() == DType::kQ8) return x;
  Dims shape = x.shape();
  shape[shape.rank() - 1] = columns_of(dtype, x.size(-1));
  memory = Tensor(DType::kQ8, shape);
  dense::quantize_q8(kAppend, name, x, stop, memory);
  return memory;
}

}  // namespace

KvCache::KvCache(const KvCacheSizes& sizes) : state_(std::make_shared<State>(checked(sizes))) {}
KvCache::~KvCache() = default;
KvCache::KvCache(const KvCache& other)
    : state_(other.state_ == nullptr ? nullptr : std::make_shared<State>(*other.state_)) {}
KvCache& KvCache::operator=(const KvCache& other) { return *this = KvCache(other); }
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

void KvCache::append(const ConstView& k, const ConstView& v) {
  append(k, v, state_->all_entries());
}

void KvCache::append(const ConstView& k, const ConstView& v, Context& context) {
  append(k, v, state_->all_entries(), context);
}

void KvCache::append(const ConstView& k, const ConstView& v, std::span<const Index> entries) {
  append_or_stop(k, v, entries, nullptr);
}

void KvCache::append(const ConstView& k, const ConstView& v, std::span<const Index> entries,
                     Context& context) {
  const runtime::Call call(context, kAppend);
  append_or_stop(k, v, entries, context.stop_flag());
}

void KvCache::append_or_stop(const ConstView& k, const ConstView& v, std::span<const Index> entries,
                             const std::atomic<bool>* flag) {
  const core::StopPoint stop(flag, kAppend);
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
    expect_appendable(name, x, s.sizes.dtype);
    const Dims shape{count, s.sizes.G, T, columns_of(x.dtype(), width)};
    const char* const blocks = x.dtype() == DType::kQ8 ? "/32" : "";
    if (x.rank() != 4) {
      throw Error(kAppend, name,
                  text("must have the 4 axes [n,G,T,", letters, blocks, "], got ", describe(x)));
    }
    if (x.shape() != shape) {
      throw Error(kAppend, name,
                  text("must have the shape [n,G,T,", letters, blocks, "] = ", to_string(shape),
                       ", got ", describe(x)));
    }
    if (core::may_overlap(x, s.pages_view(s.key_memory, s.sizes.D)) ||
        core::may_overlap(x, s.pages_view(s.value_memory, s.sizes.E))) {
      throw Error(kAppend, name, "must not lie in the cache");
    }
  };
  const Index added = k.rank() == 4 ? k.size(2) : 0;
  check("k", k, "D", added, s.sizes.D);
  check("v", v, "E", added, s.sizes.E);
  Index wanted = 0;
  Index table_pages = 0;
  for (const Index b : entries) {
    if (added > kMostSize - s.length(b)) {
      throw Error(kAppend, "k",
                  text("has T = ", added, " keys for entry ", b, ", which has ", s.length(b),
                       ": more than 2^63 together"));
    }
    const Index more = s.wanted_pages(b, added);
    if (more > kMostSize - wanted) throw std::bad_alloc();
    wanted += more;
    table_pages = std::max(table_pages, pages_of(s.length(b) + added, s.sizes.page));
  }
  expect_room(kAppend, wanted);
  Tensor k_blocks, v_blocks;
  const ConstView keys = rows_to_copy("k", k, s.sizes.dtype, stop, k_blocks);
  const ConstView values = rows_to_copy("v", v, s.sizes.dtype, stop, v_blocks);
  s.reserve_pages(wanted);
  s.reserve_tables(table_pages);
  std::vector<State::Growth> growth;
  for (const Index b : entries) growth.push_back(s.growth_of(b, added));
  auto spare = static_cast<Index>(s.free_pages.size());
  for (Index n = 0; n < count; ++n) {
    spare = s.put_rows(growth[static_cast<std::size_t>(n)], slice(keys, 0, n, n + 1),
                       slice(values, 0, n, n + 1), spare, stop);
  }
  const std::vector<Index> pages(s.free_pages.begin() + spare, s.free_pages.end());
  // Nothing throws from here on.
  s.free_pages.resize(static_cast<std::size_t>(spare));
  auto left = static_cast<Index>(pages.size());
  for (const State::Growth& by : growth) left = s.take_rows(by, pages, left);
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
  // Once keys have been dropped, a query at the last remaining key must not attend to them.
  const Index window = s.sizes.window;
  if (first > 0 && length > 0 && length < most && length - first < window) {
    const Index least = most - first < window ? most : first + window;
    throw Error(
        kTruncate, "length",
        text("must be 0 or in ", least, " to ", most, ": of the ", most, " keys of entry ", entry,
             " those before key ", first, " are dropped and a query attends to the last ", window,
             ", so that at most ", most - least, " can be removed; got ", length));
  }
  const Index page = s.sizes.page;
  s.release(entry, std::max(pages_of(length, page), first / page), pages_of(most, page));
  s.length(entry) = length;
  if (length == 0) s.first_key(entry) = 0;
}

void KvCache::expect_room(std::string_view function, Index wanted) const {
  const auto room = static_cast<Index>(state_->free_pages.size());
  if (wanted <= room || state_.use_count() == 1) {
    // With this fence, all reads of pages that are no longer held come before the pages move.
    std::atomic_thread_fence(std::memory_order_acquire);
    return;
  }
  throw Error(function, "the pages",
              text("cannot move while held: room for ", room, " more, ", wanted,
                   " needed; call reserve() before holding them"));
}

void KvCache::reserve(Index pages) {
  constexpr std::string_view kReserve = "KvCache::reserve";
  if (pages < 0) throw Error(kReserve, "pages", text("must be 0 or more, got ", pages));
  const Index wanted = pages - used_pages();
  expect_room(kReserve, wanted);
  state_->reserve_pages(wanted);
}

std::shared_ptr<const void> KvCache::hold_pages() const { return state_; }

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
      ++s.users(s.page_at(old, n));
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
  // The number of keys of the longest entry, which sets the width of the table.
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
  if (q.given() && (q.rank() != 4 || q.size(0) != s.sizes.B)) {
    throw Error(kCacheAttention, "q",
                text("must be [B,H,Tq,D] with B = ", s.sizes.B, ", the entries of the cache, got ",
                     describe(q)));
  }
  if (s.ring == 0 || !q.given()) return qkv::attention(inputs(q), options, outputs, context);
  if (!std::holds_alternative<BottomRight>(options.diagonal)) {
    throw Error(kCacheAttention, "options.diagonal",
                "must be the default, BottomRight: a cache with a window keeps only the last keys");
  }
  for (Index b = 0; b < s.sizes.B; ++b) {
    const Index first = s.first_key(b);
    if (first == 0) continue;
    const Index seen = s.length(b) - q.size(2) - (s.sizes.window - 1);
    if (seen >= first) continue;
    const bool is_within_sizes = q.size(2) <= s.sizes.queries;
    throw Error(kCacheAttention, "q",
                text("has Tq = ", q.size(2), ", whose window of ", s.sizes.window,
                     " keys begins before key ", first, ", the first that entry ", b, " of ",
                     s.length(b), " keys still has; ",
                     is_within_sizes
                         ? text("after truncate() Tq may be at most ", q.size(2) - (first - seen),
                                ", and one more for each key that is appended")
                         : text("the cache is made for queries = ", s.sizes.queries)));
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
