// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRAIN_BATCHES_H_
#define QKV_APP_TRAIN_BATCHES_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// Tokens of one sentence pair.
struct PairLength {
  Index source = 0;
  Index target = 0;
};

struct BatchOptions {
  // Of a batch, padding included: (longest source + longest target) * pairs. A pair that is longer
  // by itself is a batch of its own.
  Index most_tokens = 4096;
  std::uint64_t seed = 0;
};

// The batches of one epoch in the order in which they are learned from: each the indices of its
// pairs. Each pair is in one of them. Pairs of like lengths come together, which keeps padding
// small, those of equal lengths in an order that is drawn anew in each epoch, as is the order of
// the batches. The numbers are Philox4x32-10 of (seed; position, epoch, which order): equal
// arguments give equal batches everywhere. Throws Error when there are more than 2^32 - 1 pairs or
// most_tokens < 1.
QKV_API std::vector<std::vector<Index>> epoch_batches(std::span<const PairLength> lengths,
                                                      const BatchOptions& options, Index epoch);

// The same limit without chance, for what is only computed: pairs by length, batches in that order.
QKV_API std::vector<std::vector<Index>> sorted_batches(std::span<const PairLength> lengths,
                                                       Index most_tokens);

}  // namespace qkv::app

#endif  // QKV_APP_TRAIN_BATCHES_H_
