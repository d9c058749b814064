// SPDX-License-Identifier: Apache-2.0
#include "translator/data/batches.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <qkv/error.h>

#include "core/philox.h"

namespace qkv::app {
namespace {

// The last word of Philox's counter in each of the two shuffles; layers use words below 16.
enum class Order : std::uint32_t { kPairs = 16, kBatches = 17 };

// Shuffles by Fisher-Yates from the end. Unlike with std::shuffle, the result is the same on every
// machine. The index in [0,i) is the high half of the product of a random word and i, so that its
// probabilities differ from 1 / i by a factor between 1 - i / 2^32 and 1 + i / 2^32.
template <class T>
void shuffle(std::vector<T>& values, std::uint64_t seed, Index epoch, Order order) {
  for (std::size_t i = values.size(); i > 1; --i) {
    const auto words = core::philox4x32_10(
        {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(epoch),
         static_cast<std::uint32_t>(static_cast<std::uint64_t>(epoch) >> 32),
         static_cast<std::uint32_t>(order)},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    std::swap(values[i - 1], values[(std::uint64_t{words[0]} * i) >> 32]);
  }
}

std::vector<Index> all_pairs(std::string_view function, std::span<const PairLength> lengths,
                             Index most_tokens) {
  if (most_tokens < 1) {
    throw Error(function, "most_tokens", fmt::format("must be positive, got {}", most_tokens));
  }
  if (lengths.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(function, "lengths",
                fmt::format("must be fewer than 2^32 pairs, got {}", lengths.size()));
  }
  std::vector<Index> pairs(lengths.size());
  std::iota(pairs.begin(), pairs.end(), Index{0});
  return pairs;
}

// Sorts the sentence pairs stably, by their number of tokens and then by that of the source, and
// cuts the list into batches. A batch ends where the next sentence pair would exceed the limit.
std::vector<std::vector<Index>> cut(std::vector<Index> pairs, std::span<const PairLength> lengths,
                                    Index most_tokens) {
  const auto length = [&](Index pair) { return lengths[static_cast<std::size_t>(pair)]; };
  std::ranges::stable_sort(pairs, {}, [&](Index pair) {
    return std::tuple(length(pair).source + length(pair).target, length(pair).source);
  });
  std::vector<std::vector<Index>> batches;
  PairLength longest;
  for (const Index pair : pairs) {
    const PairLength grown{std::max(longest.source, length(pair).source),
                           std::max(longest.target, length(pair).target)};
    const bool fits =
        !batches.empty() &&
        (grown.source + grown.target) * (std::ssize(batches.back()) + 1) <= most_tokens;
    if (!fits) batches.emplace_back();
    longest = fits ? grown : length(pair);
    batches.back().push_back(pair);
  }
  return batches;
}

}  // namespace

std::vector<std::vector<Index>> epoch_batches(std::span<const PairLength> lengths,
                                              const BatchOptions& options, Index epoch) {
  std::vector<Index> pairs = all_pairs("epoch_batches", lengths, options.most_tokens);
  shuffle(pairs, options.seed, epoch, Order::kPairs);
  std::vector<std::vector<Index>> batches = cut(std::move(pairs), lengths, options.most_tokens);
  shuffle(batches, options.seed, epoch, Order::kBatches);
  return batches;
}

std::vector<std::vector<Index>> sorted_batches(std::span<const PairLength> lengths,
                                               Index most_tokens) {
  return cut(all_pairs("sorted_batches", lengths, most_tokens), lengths, most_tokens);
}

}  // namespace qkv::app
