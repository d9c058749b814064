// SPDX-License-Identifier: Apache-2.0
#include "models/batch_gradients.h"

#include <utility>

#include "core/philox.h"
#include "models/output_layer.h"
#include "models/parallel.h"
#include "models/translator_pass.h"

namespace qkv::models {
namespace {

constexpr Index kMostShards = 8;
constexpr Index kLeastPairs = 16;
// The last counter word of these random numbers; batches use 16 and 17, layers lower ones.
constexpr std::uint32_t kStream = 18;

std::uint64_t shard_seed(std::uint64_t seed, Index update, Index shard) {
  const auto u = static_cast<std::uint64_t>(update);
  const auto words = core::philox4x32_10(
      {static_cast<std::uint32_t>(u), static_cast<std::uint32_t>(u >> 32),
       static_cast<std::uint32_t>(shard), kStream},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{words[1]} << 32) | words[0];
}

}  // namespace

Index shard_count(Index pairs) {
  Index count = 1;
  while (count < kMostShards && pairs >= 2 * count * kLeastPairs) count *= 2;
  return count;
}

BatchGradients::BatchGradients(const app::Translator& translator, Executor executor,
                               const std::atomic<bool>* stop)
    : translator_(translator), executor_(std::move(executor)), context_(executor_), stop_(stop) {
  context_.set_stop_flag(stop_);
  shards_.push_back({translator_.zero_gradients()});
}

app::TranslationLoss BatchGradients::compute(std::span<const app::TokenPair> pairs,
                                             std::uint64_t seed, Index update) {
  const auto size = std::ssize(pairs);
  const Index count = shard_count(size);
  while (std::ssize(shards_) < count) shards_.push_back({translator_.zero_gradients()});
  // Packed once for all shards.
  const PackedLinear output =
      app::packed_output(translator_.config(), translator_.parameters(), context_);
  for_each_task(executor_, count, [&](Index n) {
    Shard& shard = shards_[static_cast<std::size_t>(n)];
    shard.context.set_stop_flag(stop_);
    const Index begin = n * size / count;
    const Index end = (n + 1) * size / count;
    RunState run{Mode::kTrain, shard_seed(seed, update, n)};
    app::TranslatorPass pass(
        "BatchGradients::compute", translator_.config(), translator_.parameters(),
        pairs.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        shard.context, &output);
    shard.loss = pass.forward_and_backward(run, shard.gradients);
  });
  app::TranslationLoss sum;
  std::vector<std::vector<app::TrainedParameter>> sets;
  for (Shard& shard : std::span(shards_).first(static_cast<std::size_t>(count))) {
    sum.loss += shard.loss.loss;
    sum.log_probability += shard.loss.log_probability;
    sum.tokens += shard.loss.tokens;
    sets.push_back(app::trained_parameters(shard.gradients, shard.gradients));
  }
  app::sum_tree(sets, executor_);
  return sum;
}

std::vector<app::TrainedParameter> BatchGradients::list(app::Translator& translator) {
  return app::trained_parameters(translator.parameters(), shards_[0].gradients);
}

}  // namespace qkv::models
