// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KV_CACHE_H_
#define QKV_KV_CACHE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/options.h>
#include <qkv/outputs.h>
#include <qkv/tensor.h>
#include <qkv/view.h>

namespace qkv {

// The sizes of a cache. Each of B entries has keys [G,Tk,D] and values [G,Tk,E] of one real dtype
// or q8, in pages of `page` keys, a multiple of 16. D and E count channels; with q8 they are
// multiples of 32.
struct KvCacheSizes {
  DType dtype = DType::kFloat32;
  Index B = 1;
  Index G = 1;
  Index D = 0;
  Index E = 0;
  Index page = 64;
  // If window > 0, a query attends to the last `window` keys up to its own, and keys that no call
  // of up to `queries` queries can attend to are dropped, a page at a time. `window` and `queries`
  // are at most 2^53.
  Index window = 0;
  Index queries = 16;
};

// The whole content of a cache as arrays, for writing it to files. The pages are those in use,
// renumbered from 0; a page that entries share occurs once. Rows that hold no key are 0. If a
// window has dropped all pages of all entries, there is one page that no entry uses. Pages of q8
// have D/32 and E/32 blocks where other dtypes have D and E numbers.
struct KvCacheContents {
  KvCacheSizes sizes{};
  Tensor k_pages{};       // [pages,page,G,D]
  Tensor v_pages{};       // [pages,page,G,E]
  Tensor block_tables{};  // int64 [B,pages of the longest entry]; -1 where an entry has no page
  Tensor lengths{};       // int64 [B]: keys, dropped ones included
  Tensor first_keys{};    // int64 [B]: keys that a window has dropped
};

// Keys and values that grow step by step, in pages (Kwon et al. 2023, section 4). Keys are counted
// from the first one appended, even after a window has dropped it, so that results are
// bit-identical to attention() over all keys in one array. Entries may share pages: a shared page
// is copied when one of its entries appends to it. A copy of the cache has pages of its own.
// Functions that throw Error or std::bad_alloc leave the cache unchanged. A moved-from cache may
// only be assigned to or destroyed.
class QKV_API KvCache {
 public:
  explicit KvCache(const KvCacheSizes& sizes);
  // Makes a cache from the contents() of another, with bit-identical results from then on. Throws
  // Error, which names the array that is not valid.
  explicit KvCache(const KvCacheContents& from);
  ~KvCache();
  KvCache(const KvCache&);
  KvCache& operator=(const KvCache&);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // Appends k [B,G,T,D] and v [B,G,T,E] after the keys of each entry, rounded to the cache's dtype
  // if they have another real dtype. A q8 cache accepts the numbers that quantize_q8 (qkv/q8.h)
  // accepts and quantizes them to the same blocks; it also accepts blocks [B,G,T,D/32] and
  // [B,G,T,E/32]. k and v must not lie in the cache.
  void append(const ConstView& k, const ConstView& v);
  // Appends k [n,G,T,D] and v [n,G,T,E] to the n different `entries`.
  void append(const ConstView& k, const ConstView& v, std::span<const Index> entries);
  // Appends on the calling thread. If the context's stop flag is set, throws Cancelled and leaves
  // the cache unchanged.
  void append(const ConstView& k, const ConstView& v, Context& context);
  void append(const ConstView& k, const ConstView& v, std::span<const Index> entries,
              Context& context);
  // Keeps the first `length` keys of an entry; draft tokens that were rejected are removed this
  // way. If a window has dropped keys, `length` must be 0 or at least first_key() + window, so that
  // the last key left has its whole window. A `length` of at least L - queries is always valid,
  // where L is the longest length that the entry has had. After a truncation to first_key() +
  // window, the next call may have one query, and one more for each key appended before that call.
  void truncate(Index entry, Index length);
  // Allocates memory for `pages` pages, so that appending moves no page until more are in use.
  void reserve(Index pages);
  // Removes the keys of all entries. Memory is kept.
  void reset();
  // Replaces each entry b by entry from[b], for all B entries at once, as beam search needs. No key
  // is copied.
  void reorder(std::span<const Index> from);

  // Computes attention() of q [B,H,Tq,D] over the keys of each entry, with the cache's window. With
  // BottomRight, the default diagonal, the last query is at the last key; a window requires it.
  void attention(const ConstView& q, const Options& options, const Outputs& outputs) const;
  void attention(const ConstView& q, const Options& options, const Outputs& outputs,
                 Context& context) const;
  // The inputs with which qkv::attention() can be called on the cache's keys, valid until the cache
  // changes. If the cache has a window, the call must mask all keys before first_key() by a Window.
  Inputs inputs(const ConstView& q) const;
  // Keeps the pages at their addresses for the lifetime of the result, even if the cache is
  // destroyed first; a function that would have to move them throws Error. The numbers in the pages
  // may change.
  std::shared_ptr<const void> hold_pages() const;
  // Returns a copy of the contents, as large as the pages in use.
  KvCacheContents contents() const;

  const KvCacheSizes& sizes() const noexcept;
  std::span<const Index> lengths() const noexcept;  // the keys of each entry, dropped ones included
  // The first key that the window has not dropped. Throws Error if `entry` is not one of the cache.
  Index first_key(Index entry) const;
  Index used_pages() const noexcept;
  std::size_t bytes() const noexcept;  // allocated for keys, values and tables, unused pages too

 private:
  struct State;
  // Appends, and polls the flag, which may be null.
  void append_or_stop(const ConstView& k, const ConstView& v, std::span<const Index> entries,
                      const std::atomic<bool>* flag);
  void expect_room(std::string_view function, Index wanted) const;

  std::shared_ptr<State> state_;  // shared with hold_pages()
};

}  // namespace qkv

#endif  // QKV_KV_CACHE_H_
