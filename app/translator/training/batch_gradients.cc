// SPDX-License-Identifier: Apache-2.0
#include "translator/training/batch_gradients.h"

#include <deque>
#include <utility>

#include "core/philox.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/output_pass.h"
#include "translator/passes/parallel.h"
#include "translator/passes/translator_pass.h"

namespace qkv::app {
namespace {

constexpr Index kMostShards = 8;
constexpr Index kLeastPairs = 32;
// The last counter word of the draws of micro-batch seeds; epoch_batches() uses 16 and 17, layers
// lower ones.
constexpr std::uint32_t kStream = 18;

std::uint64_t shard_seed(std::uint64_t seed, Index update, Index shard) {
  const auto u = static_cast<std::uint64_t>(update);
  const auto words = core::philox4x32_10(
      {static_cast<std::uint32_t>(u), static_cast<std::uint32_t>(u >> 32),
       static_cast<std::uint32_t>(shard), kStream},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{words[1]} << 32) | words[0];
}

// The gradients of one micro-batch: all but those of the output layer.
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
                               const std::atomic<bool>* stop)
    : translator_(translator), executor_(std::move(executor)), context_(executor_), stop_(stop) {
  context_.set_stop_flag(stop_);
  shards_.push_back({translator_.zero_gradients()});
  shards_[0].context.set_stop_flag(stop_);
}

// Runs each micro-batch to the readout, then the output layer for the rows of all micro-batches,
// then each micro-batch's backward pass.
TranslationLoss BatchGradients::compute(std::span<const TokenPair> pairs, std::uint64_t seed,
                                        Index update) {
  const TranslatorConfig& config = translator_.config();
  const auto size = std::ssize(pairs);
  const Index count = shard_count(size);
  add_shards(count);
  // The packed weights of the decoder's cell, which all micro-batches share.
  const GruCell::Steps decoder(translator_.parameters().decoder, context_);
  std::deque<TranslatorPass> passes;
  std::vector<std::int32_t> targets;
  std::vector<Index> first{0};  // first row of each pass
  for (Index n = 0; n < count; ++n) {
    const Index begin = n * size / count;
    const Index end = (n + 1) * size / count;
    const TranslatorPass& pass = passes.emplace_back(
        "BatchGradients::compute", config, translator_.parameters(),
        pairs.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        shards_[static_cast<std::size_t>(n)].context, &decoder);
    targets.insert(targets.end(), pass.targets().begin(), pass.targets().end());
    first.push_back(std::ssize(targets));
  }
  OutputPass output(config, translator_.parameters(), std::move(targets), context_);
  const auto rows_of = [&](std::size_t n) { return std::pair(first[n], first[n + 1] - first[n]); };
  for_each_task(executor_, count, [&](Index task) {
    const auto n = static_cast<std::size_t>(task);
    const auto [row, rows] = rows_of(n);
    RunState run{Mode::kTrain, shard_seed(seed, update, task)};
    passes[n].forward(run, output.rows(row, rows));
  });
  const TranslationLoss loss = output.loss_and_gradients(shards_[0].gradients);
  for_each_task(executor_, count, [&](Index task) {
    const auto n = static_cast<std::size_t>(task);
    const auto [row, rows] = rows_of(n);
    const Write embedding = n == 0 ? embedding_after_output(config) : Write::kOverwrite;
    passes[n].backward(output.d_rows(row, rows), shards_[n].gradients, embedding);
  });
  std::vector<std::vector<TrainedParameter>> sets;
  for (Shard& shard : std::span(shards_).first(static_cast<std::size_t>(count))) {
    sets.push_back(shard_gradients(shard.gradients));
  }
  sum_tree(sets, executor_);
  return loss;
}

// Adds sets of gradients up to `count`. Only set 0 has those of the output layer.
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
