// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_
#define QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include <qkv/app/translator.h>
#include <qkv/context.h>

#include "translator/optimiser/gradients.h"

namespace qkv::app {

// The number of micro-batches (shards) of a batch: the largest power of two, at most 8, with at
// least 32 sentence pairs in each, or 1. It depends on the batch alone, since it determines the
// order of sums.
Index shard_count(Index pairs);

// Computes the gradients of batches, whose micro-batches run in parallel: each is one task with a
// serial context and its own set of gradients. The output layer, which is most of the work, is
// computed for all micro-batches together, on all threads, so that its weight has one gradient.
class BatchGradients {
 public:
  // The translator and the flag (which may be null) must outlive the object.
  BatchGradients(const Translator& translator, Executor executor, const std::atomic<bool>* stop);

  // The loss of a training batch; writes its gradients to set 0: sums over tokens, not means.
  // Dropout depends on (seed, update, micro-batch). Throws Cancelled if the flag is set during the
  // call.
  TranslationLoss compute(std::span<const TokenPair> pairs, std::uint64_t seed, Index update);

  // The translator's parameters with the gradients of set 0.
  std::vector<TrainedParameter> list(Translator& translator);

 private:
  // The gradients and the serial context of one micro-batch.
  struct Shard {
    TranslatorGradients gradients;
    Context context{};
  };

  void add_shards(Index count);

  const Translator& translator_;
  Executor executor_;
  Context context_;
  const std::atomic<bool>* stop_;
  std::vector<Shard> shards_{};  // grows with the number of micro-batches
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_
