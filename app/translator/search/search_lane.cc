// SPDX-License-Identifier: Apache-2.0
#include "translator/search/search_lane.h"

#include <algorithm>
#include <numeric>

#include "core/integers.h"
#include "core/storage.h"
#include "layers/logit_kernels.h"
#include "translator/passes/parallel.h"
#include "translator/passes/values.h"

namespace qkv::app {
namespace {

// The number of hypotheses that are continued together, twelve tiles of 6 rows. With 8,000 target
// tokens, more rows of logits push the weights out of the caches: 192 rows took 6 % longer.
constexpr Index kRowsAtOnce = 72;
constexpr Index kLeastRoom = kRowsAtOnce / 2;  // free rows for which encoding sources is worthwhile
constexpr Index kMostTokensAtOnce = 1024;      // tokens of sources encoded together, with padding
constexpr Index kLeastShare = 8;   // sources that any lane may take from a nearly empty queue
constexpr Index kRowsPerTask = 8;  // rows of logits per task

}  // namespace

// ---- queue ----------------------------------------------------------------------------------

SearchQueue::SearchQueue(std::span<const TokenList> sources, Index lanes)
    : sources_(sources), lanes_(lanes), order_(sources.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return sources[a].size() > sources[b].size();
  });
}

std::vector<std::size_t> SearchQueue::take(Index most) {
  const std::lock_guard lock(mutex_);
  const Index left = std::ssize(order_) - static_cast<Index>(next_);
  if (left == 0) return {};
  const Index share = std::max(kLeastShare, core::divide_up(left, lanes_));
  const Index longest = std::ssize(sources_[order_[next_]]);
  const Index count =
      std::max<Index>(1, std::min({left, most, share, kMostTokensAtOnce / longest}));
  const auto first = order_.begin() + static_cast<std::ptrdiff_t>(next_);
  next_ += static_cast<std::size_t>(count);
  return {first, first + count};
}

// ---- decoding batch -------------------------------------------------------------------------

SearchLane::SearchLane(const SearchModel& model, const PackedDecoder& decoder, Context& context)
    : model_(model), decoder_(decoder), context_(context) {
  const TranslatorConfig& config = model.config;
  const Index room = std::max(kRowsAtOnce, model.options.beam);
  const Index width = readout_width(config);
  rows_ = Tensor(config.dtype, {room, config.hidden + context_width(config) + config.embedding});
  states_ = Tensor(config.dtype, {room, config.hidden});
  pairs_ = Tensor(config.dtype, {room, 2 * width});
  largest_ = Tensor(config.dtype, {room, width});
  logits_ = Tensor(config.dtype, {room, config.target_tokens});
}

void SearchLane::run(std::span<const TokenList> sources, SearchQueue& queue,
                     std::vector<Translation>& results) {
  for (;;) {
    fill(sources, queue);
    if (groups_.empty()) return;
    step();
    for (SearchGroup& group : groups_) group.end_step(rows_, results);
    groups_.remove_if([](const SearchGroup& group) { return group.waiting() == 0; });
  }
}

void SearchLane::fill(std::span<const TokenList> sources, SearchQueue& queue) {
  const Index beam = model_.options.beam;
  Index room = rows_.size(0);
  for (const SearchGroup& group : groups_) room -= group.waiting() * beam;
  while (groups_.empty() || room >= std::max(kLeastRoom, beam)) {
    const std::vector<std::size_t> indices = queue.take(std::max<Index>(1, room / beam));
    if (indices.empty()) return;
    std::vector<TokenList> lists;
    lists.reserve(indices.size());
    for (const std::size_t index : indices) lists.push_back(sources[index]);
    groups_.emplace_back(model_,
                         token_batch(kTranslate, "sources", lists, model_.config.source_tokens),
                         indices, context_);
    room -= std::ssize(indices) * beam;
  }
}

// Computes the logits of the next token for every live hypothesis, and chooses the continuations.
void SearchLane::step() {
  const Index H = model_.config.hidden;
  Index count = 0;
  first_rows_.clear();
  for (SearchGroup& group : groups_) {
    first_rows_.push_back(count);
    group.begin_step(rows_, states_, count);
    count += group.live();
  }
  const View rows = slice(rows_, 0, 0, count);
  decoder_.cell.forward(slice(rows, 1, H, rows.size(1)), slice(states_, 0, 0, count),
                        slice(rows, 1, 0, H), {});
  read_out(count);
  core::dispatch(model_.config.dtype, [&]<class T>() { choose<T>(count); });
}

void SearchLane::read_out(Index count) {
  const View pairs = slice(pairs_, 0, 0, count);
  const View largest = slice(largest_, 0, 0, count);
  decoder_.readout.forward(slice(ConstView(rows_), 0, 0, count), pairs);
  larger_of_pairs(pairs, largest);
  decoder_.output.forward(largest, slice(logits_, 0, 0, count));
}

template <class T>
void SearchLane::choose(Index count) {
  const auto by = layers::logit_kernels_in_use<T>(context_, kTranslate);
  const Index V = model_.config.target_tokens;
  const T* const logits = logits_.values<T>().data();
  const SearchOptions& options = model_.options;
  const RowScores scores = options.beam == 1 && options.scores == SearchScores::kIfCompared
                               ? RowScores::kOnlyOrder
                               : RowScores::kLogProbabilities;
  normalisers_.resize(static_cast<std::size_t>(count));
  for_each_task(context_.executor(), core::divide_up(count, kRowsPerTask), [&](Index task) {
    const Index end = std::min(count, (task + 1) * kRowsPerTask);
    for (Index r = task * kRowsPerTask; r < end; ++r) {
      normalisers_[static_cast<std::size_t>(r)] = normaliser(logits + r * V, V, scores, by);
    }
  });
  auto first_row = first_rows_.begin();
  for (SearchGroup& group : groups_) {
    const Index first = *first_row++;
    const auto of_group = std::span(normalisers_).subspan(static_cast<std::size_t>(first));
    for_each_task(context_.executor(), group.sources(), [&](Index b) {
      group.advance(b, logits + first * V, std::span<const Normaliser>(of_group), by);
    });
  }
}

}  // namespace qkv::app
