// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_ONEDNN_H_
#define QKV_BENCH_PEERS_ONEDNN_H_

#include "../session.h"

namespace qkv::bench {

// The strongest plain composition with oneDNN: softmax(scale q k^T) v from its matrix product,
// softmax and matrix product; the gradients from five products, the softmax and its gradient. In
// blocks of query rows, so that the scores stay in the caches. For float32, one head, no options.
Peer onednn_peer();

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_ONEDNN_H_
