// SPDX-License-Identifier: Apache-2.0
#include "translator/training/batch_gradients.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "core/integers.h"
#include "core/philox.h"
#include "ranks/collective.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/output_pass.h"
#include "translator/passes/parallel.h"
#include "translator/passes/translator_pass.h"

namespace qkv::app {
namespace {

constexpr Index kMostShards = 8;
constexpr Index kLeastPairs = 32;
// The last word of Philox's counter in draws of micro-batch seeds. epoch_batches() uses 16 and 17,
// and layers use lower words.
constexpr std::uint32_t kStream = 18;

std::uint64_t shard_seed(std::uint64_t seed, Index update, Index shard) {
  const auto u = static_cast<std::uint64_t>(update);
  const auto words = core::philox4x32_10(
      {static_cast<std::uint32_t>(u), static_cast<std::uint32_t>(u >> 32),
       static_cast<std::uint32_t>(shard), kStream},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{words[1]} << 32) | words[0];
}

// The list of all gradients but those of the output layer: the ones that a micro-batch has.
std::vector<TrainedParameter> shard_gradients(TranslatorGradients& gradients) {
  auto list = trained_parameters(gradients, gradients);
  std::erase_if(list, [](const auto& p) { return p.name.starts_with("output."); });
  return list;
}

}  // namespace

Index shard_count(Index pairs) {
  Index count = 1;
  while (count < kMostShards && pairs >= 2 * count * kLeastPairs) count *= 2;
  return count;
}

BatchGradients::BatchGradients(const Translator& translator, Executor executor,
                               const std::atomic<bool>* stop, Ranks& ranks)
    : translator_(translator),
      executor_(std::move(executor)),
      context_(executor_),
      stop_(ranks.count() == 1 ? stop : nullptr),
      ranks_(ranks) {
  context_.set_stop_flag(stop_);
  shards_.push_back({translator_.zero_gradients()});
  shards_[0].context.set_stop_flag(stop_);
}

// A batch on its way through the passes. Of its `count` micro-batches, this rank computes
// first .. end - 1.
struct BatchGradients::Batch {
  Index count = 0;
  Index first = 0;
  Index end = 0;
  std::deque<TranslatorPass> passes{};  // one for each micro-batch
  std::vector<std::int32_t> targets{};  // the target tokens of all passes; each is one row
  std::vector<Index> rows{0};           // the first row of each pass, and the number of rows
  // The rows of the readout for this rank's micro-batches, and their gradients.
  View readout{};
  View d_readout{};
  std::optional<OutputPass> output{};
  // With several ranks, for each rank the first row of its micro-batches (rank_rows) and of its
  // pass of the output layer (output_rows). Each list ends with the number of rows.
  std::vector<Index> rank_rows{};
  std::vector<Index> output_rows{};
  Tensor own_readout{}, own_d_readout{};  // empty for a single rank: it uses the rows of `output`

  // The rows of a micro-batch in `from`, an array of this rank's rows.
  View rows_of(const View& from, Index shard) const {
    const auto n = static_cast<std::size_t>(shard);
    const Index base = rows[static_cast<std::size_t>(first)];
    return slice(from, 0, rows[n] - base, rows[n + 1] - base);
  }
};

// Runs each micro-batch to the readout, then the output layer for the rows of all micro-batches,
// then each micro-batch's backward pass.
TranslationLoss BatchGradients::compute(std::span<const TokenPair> pairs, std::uint64_t seed,
                                        Index update) {
  const TranslatorConfig& config = translator_.config();
  const auto size = std::ssize(pairs);
  Batch batch{.count = shard_count(size)};
  batch.first = ranks::share(batch.count, ranks_.rank(), ranks_.count());
  batch.end = ranks::share(batch.count, ranks_.rank() + 1, ranks_.count());
  const Index own = batch.end - batch.first;
  add_shards(own);
  // The packed weights of the decoder's cell, which all micro-batches share.
  const GruCell::Steps decoder(translator_.parameters().decoder, context_);
  for (Index n = 0; n < batch.count; ++n) {
    const Index begin = n * size / batch.count;
    const Index end = (n + 1) * size / batch.count;
    const bool is_own = n >= batch.first && n < batch.end;
    const TranslatorPass& pass = batch.passes.emplace_back(
        "BatchGradients::compute", config, translator_.parameters(),
        pairs.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        is_own ? shards_[static_cast<std::size_t>(n - batch.first)].context : context_, &decoder);
    batch.targets.insert(batch.targets.end(), pass.targets().begin(), pass.targets().end());
    batch.rows.push_back(std::ssize(batch.targets));
  }
  make_room(batch);
  const auto for_each_own = [&](const auto& f) {
    for_each_task(executor_, own, [&](Index task) {
      const Index n = batch.first + task;
      f(n, batch.passes[static_cast<std::size_t>(n)]);
    });
  };
  for_each_own([&](Index n, TranslatorPass& pass) {
    RunState run{Mode::kTrain, shard_seed(seed, update, n)};
    pass.forward(run, batch.rows_of(batch.readout, n));
  });
  const TranslationLoss loss =
      is_alone() ? batch.output->loss_and_gradients(shards_[0].gradients) : output_of_ranks(batch);
  if (is_alone()) batch.d_readout = batch.output->d_rows(0, batch.rows.back());
  for_each_own([&](Index n, TranslatorPass& pass) {
    const Write embedding = n == 0 ? embedding_after_output(config) : Write::kOverwrite;
    pass.backward(batch.rows_of(batch.d_readout, n), gradients_of(batch, n), embedding);
  });
  add_up(batch, 0, batch.count);
  if (!is_alone()) {
    for_each_parameter(shards_[0].gradients, [&](const auto& p) {
      ranks::broadcast(ranks_, ranks::bytes_of(p.value.view()));
    });
  }
  return loss;
}

// Makes this rank's pass of the output layer and the arrays for the readout of its micro-batches. A
// single rank writes the readout straight into the rows of the pass. With several ranks, the rows
// of the output layer are divided anew, at multiples of kOutputRows, so that a rank's pass need not
// have the rows of the rank's micro-batches.
void BatchGradients::make_room(Batch& batch) {
  const TranslatorConfig& config = translator_.config();
  if (is_alone()) {
    batch.output.emplace(config, translator_.parameters(), std::move(batch.targets), context_);
    batch.readout = batch.output->rows(0, batch.rows.back());
    return;
  }
  const Index N = batch.rows.back();
  const Index blocks = core::divide_up(N, kOutputRows);
  for (Index r = 0; r <= ranks_.count(); ++r) {
    batch.rank_rows.push_back(
        batch.rows[static_cast<std::size_t>(ranks::share(batch.count, r, ranks_.count()))]);
    batch.output_rows.push_back(std::min(N, ranks::share(blocks, r, ranks_.count()) * kOutputRows));
  }
  const auto me = static_cast<std::size_t>(ranks_.rank());
  const auto begin = batch.targets.begin();
  batch.output.emplace(
      config, translator_.parameters(),
      std::vector(begin + batch.output_rows[me], begin + batch.output_rows[me + 1]), context_);
  const Dims shape{batch.rank_rows[me + 1] - batch.rank_rows[me], readout_width(config)};
  batch.own_readout = Tensor(config.dtype, shape);
  batch.own_d_readout = Tensor(config.dtype, shape);
  batch.readout = batch.own_readout;
  batch.d_readout = batch.own_d_readout;
}

// Runs the output layer, whose rows are divided among the ranks, and returns the batch's loss.
TranslationLoss BatchGradients::output_of_ranks(Batch& batch) {
  const auto me = static_cast<std::size_t>(ranks_.rank());
  const Index own_rows = batch.output_rows[me + 1] - batch.output_rows[me];
  OutputPass& output = *batch.output;
  ranks::move_rows(ranks_, batch.rank_rows, batch.readout, batch.output_rows,
                   output.rows(0, own_rows));
  const Tensor& own = output.losses_and_row_gradients();
  sum_over_rows(batch);
  ranks::move_rows(ranks_, batch.output_rows, output.d_rows(0, own_rows), batch.rank_rows,
                   batch.d_readout);
  // Collect the losses of all rows, in the order of the rows.
  const std::span<const std::byte> bytes = ranks::bytes_of(own.view());
  const std::vector<std::string> parts =
      ranks::all_texts(ranks_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Tensor losses(own.dtype(), {2, batch.rows.back()});
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const Index first = batch.output_rows[r];
    const Index count = batch.output_rows[r + 1] - first;
    if (count == 0) continue;
    const std::string& part = parts[r];
    Tensor of_rank(own.dtype(), {2, count});
    std::memcpy(of_rank.view().data(), part.data(), part.size());
    copy(of_rank, slice(losses.view(), 1, first, first + count));
  }
  return OutputPass::sum(losses);
}

// Sums the gradients of the output layer over rows: each rank adds the terms of its rows to the
// sums from the rank before, and passes them on; the last rank sends the sums to rank 0. The ranks
// work at the same time, each on a different range of the vocabulary's tokens.
void BatchGradients::sum_over_rows(Batch& batch) {
  constexpr Index kTokens = 512;
  const int me = ranks_.rank();
  const auto has_rows = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return batch.output_rows[r + 1] > batch.output_rows[r];
  };
  int last = ranks_.count() - 1;  // the last rank with rows; ranks before it may have none
  while (last > 0 && !has_rows(last)) --last;
  TranslatorGradients& gradients = shards_[0].gradients;
  const Index V = translator_.config().target_tokens;
  const auto parts = [&](Index first, Index count) {
    std::vector<View> views{
        slice(output_weight(translator_.config(), gradients).view(), 0, first, first + count),
        slice(gradients.output.bias.view(), 0, first, first + count)};
    return views;
  };
  std::vector<std::unique_ptr<Transfer>> sent;
  for (Index first = 0; first < V && me <= last; first += kTokens) {
    const Index count = std::min(kTokens, V - first);
    for (const View& part : parts(first, count)) {
      if (me > 0) ranks_.receive(ranks::bytes_of(part), me - 1)->wait();
    }
    batch.output->token_gradients(gradients, first, count,
                                  me > 0 ? Write::kAccumulate : Write::kOverwrite);
    for (const View& part : parts(first, count)) {
      if (me < last) sent.push_back(ranks_.send(ranks::bytes_of(part), me + 1));
    }
  }
  for (const auto& transfer : sent) transfer->wait();
  if (last == 0) return;
  for (const View& part : parts(0, V)) {
    if (me == last) ranks_.send(ranks::bytes_of(part), 0)->wait();
    if (me == 0) ranks_.receive(ranks::bytes_of(part), last)->wait();
  }
}

// Adds the gradients of micro-batches first + 1 .. first + count - 1 to those of micro-batch
// `first`, on the rank that computed it. `count` is a power of two. Each rank computes branches of
// the tree of sum_tree().
void BatchGradients::add_up(const Batch& batch, Index first, Index count) {
  const auto rank_of = [&](Index n) { return ranks::owner(n, batch.count, ranks_.count()); };
  const int me = ranks_.rank();
  const int left = rank_of(first);
  if (left == rank_of(first + count - 1)) {
    if (left != me) return;
    std::vector<std::vector<TrainedParameter>> sets;
    for (Index n = first; n < first + count; ++n) {
      sets.push_back(shard_gradients(gradients_of(batch, n)));
    }
    sum_tree(sets, executor_);
    return;
  }
  const Index half = count / 2;
  add_up(batch, first, half);
  add_up(batch, first + half, half);
  const int right = rank_of(first + half);
  if (right == me && left != me) {
    for (const TrainedParameter& p : shard_gradients(gradients_of(batch, first + half))) {
      ranks_.send(ranks::bytes_of(p.gradient), left)->wait();
    }
  }
  if (left != me) return;
  TranslatorGradients* other = nullptr;
  if (right == me) {
    other = &gradients_of(batch, first + half);
  } else {
    if (!received_) {
      received_ = translator_.zero_gradients();
      received_->output = {};
    }
    other = &*received_;
    for (const TrainedParameter& p : shard_gradients(*other)) {
      ranks_.receive(ranks::bytes_of(p.gradient), right)->wait();
    }
  }
  const std::vector<std::vector<TrainedParameter>> both{shard_gradients(gradients_of(batch, first)),
                                                        shard_gradients(*other)};
  sum_tree(both, executor_);
}

// The gradients of micro-batch `shard`, which is one of this rank.
TranslatorGradients& BatchGradients::gradients_of(const Batch& batch, Index shard) {
  return shards_[static_cast<std::size_t>(shard - batch.first)].gradients;
}

// Appends to shards_ until there are at least `count`. Only shards_[0] has gradients of the output
// layer.
void BatchGradients::add_shards(Index count) {
  while (std::ssize(shards_) < count) {
    shards_.push_back({translator_.zero_gradients()});
    shards_.back().gradients.output = {};
    shards_.back().context.set_stop_flag(stop_);
  }
}

std::vector<TrainedParameter> BatchGradients::list(Translator& translator) {
  return trained_parameters(translator.parameters(), shards_[0].gradients);
}

}  // namespace qkv::app
