// SPDX-License-Identifier: Apache-2.0
#include "ranks/collective.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <qkv/tensor.h>

namespace qkv {

OtherRankFailed::OtherRankFailed(int rank)
    : std::runtime_error("rank " + std::to_string(rank) + " has failed") {}
OtherRankFailed::~OtherRankFailed() = default;

namespace ranks {
namespace {

void send(Ranks& ranks, std::span<const std::byte> bytes, int to) { ranks.send(bytes, to)->wait(); }
void receive(Ranks& ranks, std::span<std::byte> bytes, int from) {
  ranks.receive(bytes, from)->wait();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void send(Ranks& ranks, const std::string& text, int to) {
  const std::uint64_t size = text.size();
  send(ranks, std::as_bytes(std::span(&size, 1)), to);
  if (size > 0) send(ranks, bytes_of(text), to);
}

std::string receive_text(Ranks& ranks, int from) {
  std::uint64_t size = 0;
  receive(ranks, std::as_writable_bytes(std::span(&size, 1)), from);
  std::string text(size, '\0');
  if (size > 0) receive(ranks, std::as_writable_bytes(std::span(text.data(), size)), from);
  return text;
}

// Returns a text preceded by its length.
std::string framed(std::string_view text) {
  const std::uint64_t size = text.size();
  std::string frame(sizeof(size), '\0');
  std::memcpy(frame.data(), &size, sizeof(size));
  return frame.append(text);
}

// Returns the distance from this rank to its parent in the binomial tree with root 0: the lowest
// set bit of the rank. For rank 0, the first power of two that is not below the number of ranks.
int distance_up(const Ranks& ranks) {
  int distance = 1;
  while (distance < ranks.count() && (ranks.rank() & distance) == 0) distance *= 2;
  return distance;
}

// Calls f(rank) for the children of this rank in the tree, the largest subtree first.
template <class F>
void for_each_below(const Ranks& ranks, const F& f) {
  for (int distance = distance_up(ranks) / 2; distance >= 1; distance /= 2) {
    if (ranks.rank() + distance < ranks.count()) f(ranks.rank() + distance);
  }
}

}  // namespace

std::unique_ptr<Transfer> OneRank::send(std::span<const std::byte> /*data*/, int /*to*/,
                                        int /*channel*/) {
  throw std::logic_error("a single process has nobody to send to");
}
std::unique_ptr<Transfer> OneRank::receive(std::span<std::byte> /*data*/, int /*from*/,
                                           int /*channel*/) {
  throw std::logic_error("a single process has nobody to receive from");
}

// Rounds down, because share() rounds up.
int owner(Index thing, Index n, Index ranks) { return static_cast<int>(thing * ranks / n); }

void broadcast(Ranks& ranks, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  if (ranks.rank() != 0) receive(ranks, bytes, ranks.rank() - distance_up(ranks));
  for_each_below(ranks, [&](int below) { send(ranks, bytes, below); });
}

void broadcast(Ranks& ranks, std::string& text) {
  if (ranks.rank() != 0) text = receive_text(ranks, ranks.rank() - distance_up(ranks));
  for_each_below(ranks, [&](int below) { send(ranks, text, below); });
}

std::string joined(std::span<const std::string> texts) {
  std::string frames;
  for (const std::string& text : texts) frames += framed(text);
  return frames;
}

std::vector<std::string> split(std::string_view joined) {
  std::vector<std::string> texts;
  while (!joined.empty()) {
    std::uint64_t size = 0;
    std::memcpy(&size, joined.data(), sizeof(size));
    texts.emplace_back(joined.substr(sizeof(size), size));
    joined.remove_prefix(sizeof(size) + size);
  }
  return texts;
}

// A rank collects the texts of its subtree, whose ranks are consecutive, and sends them to its
// parent.
std::vector<std::string> all_texts(Ranks& ranks, std::string_view mine) {
  std::string frames = framed(mine);
  const int top = distance_up(ranks);
  for (int distance = 1; distance < top; distance *= 2) {
    if (ranks.rank() + distance < ranks.count()) {
      frames += receive_text(ranks, ranks.rank() + distance);
    }
  }
  if (ranks.rank() != 0) send(ranks, frames, ranks.rank() - top);
  broadcast(ranks, frames);
  return split(frames);
}

void combine(Ranks& ranks, std::span<std::byte> mine,
             const std::function<void(std::span<const std::byte>)>& add) {
  if (mine.empty()) return;
  const int top = distance_up(ranks);
  std::vector<std::byte> other(top > 1 ? mine.size() : 0);
  for (int distance = 1; distance < top; distance *= 2) {
    if (ranks.rank() + distance >= ranks.count()) continue;
    receive(ranks, other, ranks.rank() + distance);
    add(other);
  }
  if (ranks.rank() != 0) send(ranks, mine, ranks.rank() - top);
  broadcast(ranks, mine);
}

bool any(Ranks& ranks, bool mine) {
  return std::ranges::any_of(all_texts(ranks, mine ? "1" : ""),
                             [](const std::string& text) { return !text.empty(); });
}

}  // namespace ranks

void check_all(Ranks& ranks, const std::exception_ptr& error) {
  const std::vector<std::string> failed = ranks::all_texts(ranks, error ? "1" : "");
  for (int rank = 0; rank < ranks.count(); ++rank) {
    if (failed[static_cast<std::size_t>(rank)].empty()) continue;
    if (rank == ranks.rank()) std::rethrow_exception(error);
    throw OtherRankFailed(rank);
  }
}

namespace ranks {

void move_rows(Ranks& ranks, std::span<const Index> from, const ConstView& mine,
               std::span<const Index> to, const View& target) {
  const auto me = static_cast<std::size_t>(ranks.rank());
  // Returns [begin, end) of the rows that `giver` sends to `taker`, counted from row `base`.
  const auto common = [&](std::size_t giver, std::size_t taker, Index base) {
    const Index begin = std::max(from[giver], to[taker]);
    const Index end = std::max(begin, std::min(from[giver + 1], to[taker + 1]));
    return std::pair(begin - base, end - base);
  };
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (std::size_t other = 0; other < static_cast<std::size_t>(ranks.count()); ++other) {
    const auto [begin, end] = common(other, me, to[me]);
    if (begin == end) continue;
    const View rows = slice(target, 0, begin, end);
    if (other == me) {
      copy(slice(mine, 0, common(me, me, from[me]).first, common(me, me, from[me]).second), rows);
    } else {
      transfers.push_back(ranks.receive(ranks::bytes_of(rows), static_cast<int>(other)));
    }
  }
  for (std::size_t other = 0; other < static_cast<std::size_t>(ranks.count()); ++other) {
    const auto [begin, end] = common(me, other, from[me]);
    if (begin == end || other == me) continue;
    const ConstView rows = slice(mine, 0, begin, end);
    transfers.push_back(ranks.send(ranks::bytes_of(rows), static_cast<int>(other)));
  }
  for (const auto& transfer : transfers) transfer->wait();
}

}  // namespace ranks
}  // namespace qkv
