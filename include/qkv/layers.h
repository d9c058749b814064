// SPDX-License-Identifier: Apache-2.0
// A layer has parameters, a forward pass that fills a `Saved`, and a backward pass that reads it.
//
//   MultiHeadAttention layer({.width = 512, .heads = 8});
//   initialise(layer, 42);
//   MultiHeadAttention::Saved saved;
//   RunState run{Mode::kTrain, 7};
//   layer.forward({x, x, x, lengths}, run, saved, {.out = y});
//   auto gradients = layer.zero_gradients();
//   layer.backward(saved, {.out = dy}, {.q = dx, .k = dx, .v = dx}, gradients);
#ifndef QKV_LAYERS_H_
#define QKV_LAYERS_H_

#include <qkv/layers/cross_entropy.h>
#include <qkv/layers/dropout.h>
#include <qkv/layers/embedding.h>
#include <qkv/layers/gru.h>
#include <qkv/layers/gru_stack.h>
#include <qkv/layers/linear.h>
#include <qkv/layers/multi_head.h>
#include <qkv/layers/parameters.h>
#include <qkv/layers/run.h>
#include <qkv/layers/score_layers.h>
#include <qkv/layers/self_attention.h>

#endif  // QKV_LAYERS_H_
