// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_ONEDNN_H_
#define QKV_BENCH_PEERS_ONEDNN_H_

#include "../session.h"

namespace qkv::bench {

// The strongest plain composition with oneDNN: softmax(scale q k^T) v by its matrix product,
// softmax and matrix product; the gradients by five products, the softmax and its gradient. It
// computes blocks of query rows, so that the scores stay in the caches. Supports one head in
// float32 without options, whose values are as wide as its keys and whose Tq is a multiple of 16,
// and the products of linear layers on one thread.
Peer onednn_peer();

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_ONEDNN_H_
