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

// What a cache holds: for each of B entries, keys [G,Tk,D] and values [G,Tk,E] of one real dtype or
// q8, in pages of `page` keys, a multiple of 16. With q8, D and E, which count channels, are
// multiples of 32.
struct KvCacheSizes {
  DType dtype = DType::kFloat32;
  Index B = 1;
  Index G = 1;
  Index D = 0;
  Index E = 0;
  Index page = 64;
  // Above 0: a query sees the last `window` keys, itself included, and a call may have up to
  // `queries` queries, each at most 2^53. Keys that no such call can see are dropped, a page at a
  // time.
  Index window = 0;
  Index queries = 16;
};

// All that a cache holds, as arrays: for files. Pages are those in use, numbered anew; one that
// entries share occurs once. Rows that hold no key are 0. If a window has left no page of any
// entry, there is one that none has. Pages of q8 have D/32 and E/32 blocks where others have D
// and E numbers.
struct KvCacheContents {
  KvCacheSizes sizes{};
  Tensor k_pages{};       // [pages,page,G,D]
  Tensor v_pages{};       // [pages,page,G,E]
  Tensor block_tables{};  // int64 [B,pages of the longest entry]; -1 where an entry has no page
  Tensor lengths{};       // int64 [B]: keys, dropped ones included
  Tensor first_keys{};    // int64 [B]: how many of them a window has dropped
};

// Keys and values that grow step by step, in pages (Kwon et al. 2023, section 4). Keys are counted
// from the first one appended, also after a window has dropped it, so that results have the bits
// of attention() over all keys in one piece. Entries may share pages; a shared page is copied when
// one of them appends to it. Functions throw Error, or std::bad_alloc, and then change nothing. A
// copy has pages of its own.
class QKV_API KvCache {
 public:
  explicit KvCache(const KvCacheSizes& sizes);
  // One that goes on as the cache whose contents() these are, to the bit. Throws Error naming the
  // array that is not as it must be.
  explicit KvCache(const KvCacheContents& from);
  ~KvCache();
  KvCache(const KvCache&);
  KvCache& operator=(const KvCache&);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // k [B,G,T,D] and v [B,G,T,E] after the keys of each entry; of another real dtype they are
  // rounded to the cache's. A cache of q8 takes what quantize_q8 (qkv/q8.h) takes, and makes the
  // same blocks of it; or blocks, [B,G,T,D/32] and [B,G,T,E/32]. They must not lie in the cache.
  void append(const ConstView& k, const ConstView& v);
  // For n different `entries`: k [n,G,T,D], v [n,G,T,E].
  void append(const ConstView& k, const ConstView& v, std::span<const Index> entries);
  // Appends on the context's threads. If its stop flag is set, throws Cancelled, and the cache is
  // as it was.
  void append(const ConstView& k, const ConstView& v, Context& context);
  void append(const ConstView& k, const ConstView& v, std::span<const Index> entries,
              Context& context);
  // An entry keeps its first `length` keys: those of rejected guesses go. With a window that has
  // dropped keys, `length` is 0 or at least first_key() + window, so that the last key that is left
  // has its window; (the longest the entry has been) - `queries` and above is always accepted.
  // Then calls may have one query, and one more for each key that is appended.
  void truncate(Index entry, Index length);
  // Room for so many pages in use, without moving any.
  void reserve(Index pages);
  // No entry has a key. Memory is kept.
  void reset();
  // Entry b becomes what entry from[b] was, for all B: beams. No key is copied.
  void reorder(std::span<const Index> from);

  // attention() of q [B,H,Tq,D] over the keys of each entry, with the cache's window; the last
  // query is at the last key. With a window, the diagonal must be BottomRight.
  void attention(const ConstView& q, const Options& options, const Outputs& outputs) const;
  void attention(const ConstView& q, const Options& options, const Outputs& outputs,
                 Context& context) const;
  // What the plain call takes, until the next change of the cache. With a window, the call must
  // have a Window that sees no key before first_key().
  Inputs inputs(const ConstView& q) const;
  // Keeps pages where they are as long as the result lives, even without the cache: a call that
  // would have to move them throws Error. Their numbers may change.
  std::shared_ptr<const void> hold_pages() const;
  // A copy, of as many bytes as the pages in use have.
  KvCacheContents contents() const;

  const KvCacheSizes& sizes() const noexcept;
  std::span<const Index> lengths() const noexcept;  // the keys of each entry, dropped ones included
  // The first key that is still there. Throws Error.
  Index first_key(Index entry) const;
  Index used_pages() const noexcept;
  std::size_t bytes() const noexcept;  // of keys, values and tables, spare ones included

 private:
  struct State;
  // The flag may be null.
  void append_or_stop(const ConstView& k, const ConstView& v, std::span<const Index> entries,
                      const std::atomic<bool>* flag);
  void expect_room(std::string_view function, Index wanted) const;

  std::shared_ptr<State> state_;  // shared with hold_pages()
};

}  // namespace qkv

#endif  // QKV_KV_CACHE_H_
