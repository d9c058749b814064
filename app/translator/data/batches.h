// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_BATCHES_H_
#define QKV_TRANSLATOR_DATA_BATCHES_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/view.h>

namespace qkv::app {

// The token counts of one sentence pair.
struct PairLength {
  Index source = 0;
  Index target = 0;
};

struct BatchOptions {
  // The limit for (longest source + longest target) * sentence pairs, a batch's number of tokens
  // with padding. A sentence pair that exceeds the limit is a batch by itself.
  Index most_tokens = 4096;
  std::uint64_t seed = 0;
};

// The batches of one epoch in training order; a batch lists the indices of its sentence pairs. Each
// sentence pair is in exactly one batch. Sentence pairs of similar lengths are grouped, which keeps
// padding small. In each epoch, sentence pairs of equal lengths are shuffled anew, and so is the
// order of the batches. The random numbers are Philox4x32-10 with `seed` as the key and (position,
// epoch, shuffle) as the counter, so that equal arguments give equal batches on every machine.
// Throws Error for more than 2^32 - 1 sentence pairs or most_tokens < 1.
std::vector<std::vector<Index>> epoch_batches(std::span<const PairLength> lengths,
                                              const BatchOptions& options, Index epoch);

// Batches for evaluation, without shuffling: sentence pairs and batches ascend in length.
std::vector<std::vector<Index>> sorted_batches(std::span<const PairLength> lengths,
                                               Index most_tokens);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_BATCHES_H_
