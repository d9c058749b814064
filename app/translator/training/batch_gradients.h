// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_
#define QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <qkv/app/translator.h>
#include <qkv/context.h>
#include <qkv/ranks.h>

#include "translator/optimiser/gradients.h"

namespace qkv::app {

// The number of micro-batches (shards) of a batch: the largest power of two, at most 8, with at
// least 32 sentence pairs in each, or 1. It depends on the batch alone, since it determines the
// order of sums.
Index shard_count(Index pairs);

// Computes the gradients of batches, whose micro-batches run in parallel: each is one task on one
// of the ranks, with a serial context and gradients that no other micro-batch shares. The output
// layer, which is most of the work, is computed for all micro-batches together, on all threads and
// ranks, so that its weight has one gradient. The result has the same bits on every rank, for any
// number of ranks and threads.
class BatchGradients {
 public:
  // The translator, the flag (which may be null) and the ranks must outlive the object.
  BatchGradients(const Translator& translator, Executor executor, const std::atomic<bool>* stop,
                 Ranks& ranks);

  // Returns the loss of a training batch, the same on all ranks, and computes the batch's gradients
  // (sums over tokens, not means), which list() then returns on every rank. Dropout depends on
  // (seed, update, micro-batch). A single rank throws Cancelled if the flag is set during the call;
  // several ranks ignore the flag.
  TranslationLoss compute(std::span<const TokenPair> pairs, std::uint64_t seed, Index update);

  // The translator's parameters with the gradients of the last compute().
  std::vector<TrainedParameter> list(Translator& translator);

 private:
  // The gradients and the serial context of one micro-batch.
  struct Shard {
    TranslatorGradients gradients;
    Context context{};
  };
  struct Batch;

  void add_shards(Index count);
  void make_room(Batch& batch);
  TranslationLoss output_of_ranks(Batch& batch);
  void sum_over_rows(Batch& batch);
  void add_up(const Batch& batch, Index first, Index count);
  TranslatorGradients& gradients_of(const Batch& batch, Index shard);
  bool is_alone() const { return ranks_.count() == 1; }

  const Translator& translator_;
  Executor executor_;
  Context context_;
  const std::atomic<bool>* stop_;
  Ranks& ranks_;
  // One for each micro-batch that this rank had in the largest batch so far, at least one.
  std::vector<Shard> shards_{};
  std::optional<TranslatorGradients> received_{};  // gradients from another rank
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_BATCH_GRADIENTS_H_
