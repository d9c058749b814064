// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_BROADCAST_H_
#define QKV_BENCH_PEERS_BROADCAST_H_

#include "../session.h"

namespace qkv::bench {

// The formula of the additive score written with broadcasting: an array of
// tanh(Wq q_i + b + Wk k_j) by SLEEF's vector tanh, its products with v, softmax, weighted sum. In
// blocks of keys, so that the array stays in a cache. For the forward pass in float32 on one
// thread, one head, no other options.
Peer broadcast_peer();

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_BROADCAST_H_
