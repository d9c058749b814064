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
  // The limit of a batch, padding included: (longest source + longest target) * sentence pairs. A
  // sentence pair that exceeds it is a batch of its own.
  Index most_tokens = 4096;
  std::uint64_t seed = 0;
};

// The batches of one epoch in training order; a batch is the indices of its sentence pairs. Each
// sentence pair is in exactly one batch. Sentence pairs of similar lengths are grouped, which keeps
// padding small; those of equal lengths are reshuffled in each epoch, and so is the order of the
// batches. The random numbers are Philox4x32-10 of (seed; position, epoch, shuffle), so that equal
// arguments give equal batches everywhere. Throws Error for more than 2^32 - 1 sentence pairs or
// most_tokens < 1.
std::vector<std::vector<Index>> epoch_batches(std::span<const PairLength> lengths,
                                              const BatchOptions& options, Index epoch);

// Batches for evaluation, without shuffling: sentence pairs and batches are in the order of length.
std::vector<std::vector<Index>> sorted_batches(std::span<const PairLength> lengths,
                                               Index most_tokens);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_BATCHES_H_
