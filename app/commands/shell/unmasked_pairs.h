// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_UNMASKED_PAIRS_H_
#define QKV_COMMANDS_SHELL_UNMASKED_PAIRS_H_

#include <qkv/tensor.h>

// True for each pair whose score after masks is not -inf, bool in the shape of `masked_scores`,
// which are float64 or float32 and in C order. Weights do not show which pairs are masked: the
// weight of an unmasked pair may round to 0.
qkv::Tensor unmasked_pairs(const qkv::ConstView& masked_scores);

#endif  // QKV_COMMANDS_SHELL_UNMASKED_PAIRS_H_
