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

// The number of shards of a batch: the largest power of two, at most 8, that leaves 32 pairs in
// each, else 1. It depends on the batch alone, since it decides the order of sums.
Index shard_count(Index pairs);

// The gradients of batches, computed by shards in parallel: each is one task with a serial context
// and a set of gradients of its own. The output layer, which is most of the work, is computed for
// all of them together, on all threads: its weight has one gradient.
class BatchGradients {
 public:
  // The translator and the flag (which may be null) must outlive the object.
  BatchGradients(const Translator& translator, Executor executor, const std::atomic<bool>* stop);

  // The loss of a training batch, and its gradients in set 0: sums, not means. Dropout is drawn
  // by (seed, update, shard). Throws Cancelled if the flag is set meanwhile.
  TranslationLoss compute(std::span<const TokenPair> pairs, std::uint64_t seed, Index update);

  // Set 0 paired with the translator's own parameters.
  std::vector<TrainedParameter> list(Translator& translator);

 private:
  struct Shard {
    TranslatorGradients gradients;
    Context context{};
  };

  void add_shards(Index count);

  const Translator& translator_;
  Executor executor_;
  Context context_;
  const std::atomic<bool>* stop_;
  std::vector<Shard> shards_{};  // as many as needed so far
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_
