// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_BROADCAST_H_
#define QKV_BENCH_PEERS_BROADCAST_H_

#include "../session.h"

namespace qkv::bench {

// The additive score as its formula is written with broadcasting: an array of tanh(Wq q_i + b + Wk
// k_j) by SLEEF's vector tanh, its products with v, softmax, weighted sum. It computes blocks of
// keys, so that the array stays in a cache. Supports the forward pass of one head in float32 on one
// thread, without other options.
Peer broadcast_peer();

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_BROADCAST_H_
