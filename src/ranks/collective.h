// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RANKS_COLLECTIVE_H_
#define QKV_RANKS_COLLECTIVE_H_

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <qkv/export.h>
#include <qkv/ranks.h>
#include <qkv/view.h>

// Operations of all ranks together, made of messages between two ranks. All ranks call each
// operation, in the same order.
namespace qkv::ranks {

// A single process.
class QKV_API OneRank final : public Ranks {
 public:
  int rank() const noexcept override { return 0; }
  int count() const noexcept override { return 1; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to, int channel) override;
  std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from, int channel) override;
};

// Returns the first thing of a rank's share of n consecutive things; the share ends before the
// first thing of the next rank. The sizes of shares differ by at most one, and rank 0 has thing 0.
inline Index share(Index n, Index rank, Index ranks) { return (rank * n + ranks - 1) / ranks; }
// Returns the rank whose share contains `thing`.
QKV_API int owner(Index thing, Index n, Index ranks);

// The bytes of a C-ordered array.
inline std::span<const std::byte> bytes_of(const ConstView& contiguous) {
  return {static_cast<const std::byte*>(contiguous.data()),
          static_cast<std::size_t>(contiguous.element_count()) * size_of(contiguous.dtype())};
}
inline std::span<std::byte> bytes_of(const View& contiguous) {
  const std::span<const std::byte> bytes = bytes_of(ConstView(contiguous));
  return {static_cast<std::byte*>(contiguous.data()), bytes.size()};
}

// Copies the bytes of rank 0 to all other ranks.
QKV_API void broadcast(Ranks& ranks, std::span<std::byte> bytes);
QKV_API void broadcast(Ranks& ranks, std::string& text);
template <class T>
  requires std::is_trivially_copyable_v<T>
void broadcast(Ranks& ranks, T& value) {
  broadcast(ranks, std::as_writable_bytes(std::span(&value, 1)));
}

// Returns the texts that all ranks pass as `mine`, by rank.
QKV_API std::vector<std::string> all_texts(Ranks& ranks, std::string_view mine);

// joined() packs texts into one string, split() unpacks it.
QKV_API std::string joined(std::span<const std::string> texts);
QKV_API std::vector<std::string> split(std::string_view joined);

// Combines arrays of equal sizes in no particular order: add(other) combines another rank's array
// into `mine`. In the end `mine` is the combination of all arrays, on every rank.
QKV_API void combine(Ranks& ranks, std::span<std::byte> mine,
                     const std::function<void(std::span<const std::byte>)>& add);

// Returns whether `mine` is true on any rank.
QKV_API bool any(Ranks& ranks, bool mine);

// Calls f on every rank. If f throws on some ranks, the lowest of these rethrows, and all other
// ranks throw OtherRankFailed.
template <class F>
void agreed(Ranks& ranks, const F& f) {
  std::exception_ptr error;
  try {
    f();
  } catch (...) {
    error = std::current_exception();
  }
  check_all(ranks, error);
}

// Moves the rows of a matrix from one division among the ranks to another: rank r has the rows
// from[r] .. from[r+1] - 1 in `mine`, and gets the rows to[r] .. to[r+1] - 1 in `target`. Both
// arrays are C-ordered.
QKV_API void move_rows(Ranks& ranks, std::span<const Index> from, const ConstView& mine,
                       std::span<const Index> to, const View& target);

}  // namespace qkv::ranks

#endif  // QKV_RANKS_COLLECTIVE_H_
