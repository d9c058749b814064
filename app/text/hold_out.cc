// SPDX-License-Identifier: Apache-2.0
#include "text/hold_out.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "core/draws.h"

namespace qkv::app {
namespace {

// Gives the numbers below `count` in random order, one at a time, by Fisher and Yates's shuffle
// from the front.
class Shuffled {
 public:
  Shuffled(std::uint32_t count, std::uint64_t seed)
      : numbers_(count), draws_(seed, core::DrawStream::kHeldOut, 0) {
    std::iota(numbers_.begin(), numbers_.end(), 0U);
  }

  bool is_empty() const { return next_ == numbers_.size(); }
  std::uint32_t next() {
    const std::size_t drawn =
        next_ + draws_.below(static_cast<std::uint32_t>(numbers_.size() - next_));
    std::swap(numbers_[next_], numbers_[drawn]);
    return numbers_[next_++];
  }

 private:
  std::vector<std::uint32_t> numbers_;
  core::Draws draws_;
  std::size_t next_ = 0;
};

// For each target, whether a test or validation pair has it.
std::vector<bool> targets_in(std::span<const PairOfTexts> pairs, std::span<const Part> of_sources,
                             std::size_t targets) {
  std::vector<bool> held(targets);
  for (const PairOfTexts& pair : pairs) {
    if (of_sources[pair.source] != Part::kTrain) held[pair.target] = true;
  }
  return held;
}

// For each source, whether `held` is true for one of its targets.
std::vector<bool> sources_of(std::span<const PairOfTexts> pairs, const std::vector<bool>& held,
                             std::size_t sources) {
  std::vector<bool> touch(sources);
  for (const PairOfTexts& pair : pairs) {
    if (held[pair.target]) touch[pair.source] = true;
  }
  return touch;
}

}  // namespace

Parts divided(std::span<const PairOfTexts> pairs, const HoldOut& wanted) {
  std::uint32_t sources = 0;
  std::uint32_t targets = 0;
  for (const PairOfTexts& pair : pairs) {
    sources = std::max(sources, pair.source + 1);
    targets = std::max(targets, pair.target + 1);
  }
  Parts parts;
  std::vector<Part> of_sources(sources, Part::kTrain);
  Shuffled order(sources, wanted.seed);
  for (; parts.test < wanted.test && !order.is_empty(); ++parts.test) {
    of_sources[order.next()] = Part::kTest;
  }
  const auto touches_test = sources_of(pairs, targets_in(pairs, of_sources, targets), sources);
  while (parts.valid < wanted.valid && !order.is_empty()) {
    const std::uint32_t source = order.next();
    if (touches_test[source]) continue;
    of_sources[source] = Part::kValid;
    ++parts.valid;
  }
  const std::vector<bool> held = targets_in(pairs, of_sources, targets);
  for (const PairOfTexts& pair : pairs) {
    const bool is_dropped = of_sources[pair.source] == Part::kTrain && held[pair.target];
    parts.of_pairs.push_back(is_dropped ? Part::kDropped : of_sources[pair.source]);
  }
  return parts;
}

}  // namespace qkv::app
