// SPDX-License-Identifier: Apache-2.0
// A bias for each head and clipped distance: s <- s + table[head][clip(j - i)]. (T5 learns a table
// with buckets of distances.) attention_backward() gives no gradient of an array that a C++
// function reads; Options::bias [H,Tq,Tk] and arrays that an Expression reads have one.
#include <cstdio>
#include <vector>

#include <qkv/qkv.h>

using namespace qkv;

int main() {
  constexpr Index kHeads = 2, kTokens = 6, kWidth = 4, kReach = 2;
  // Queries and keys are zeros: every score is 0, so that the weights are the softmax of the table.
  const Tensor q(DType::kFloat32, {1, kHeads, kTokens, kWidth});
  const Tensor k(DType::kFloat32, {1, kHeads, kTokens, kWidth});
  Tensor weights(DType::kFloat32, {1, kHeads, kTokens, kTokens});

  // The entries are for the distances -2 .. 2; larger distances share the outermost entries.
  const std::vector<float> table = {0.0F, 1.0F, 2.0F, 1.0F, 0.0F,    // head 0: symmetric
                                    3.0F, 2.0F, 1.0F, 0.0F, -1.0F};  // head 1: looks back
  constexpr int kEntries = 2 * kReach + 1;
  const ScoreMod bias = score_mod([centre = table.data() + kReach](auto s, At at) {
    const int distance = at.j - at.i;
    const int below = distance < -kReach ? -kReach : distance;
    const int clipped = below > kReach ? kReach : below;
    return s + centre[at.h * kEntries + clipped];
  });

  attention({q, k}, {.mods = {bias}}, {.weights = weights});
  for (Index h = 0; h < kHeads; ++h) {
    std::printf("head %d, query 3:", static_cast<int>(h));
    for (Index j = 0; j < kTokens; ++j)
      std::printf(" %.4f", weights.view().at<float>({0, h, 3, j}));
    std::printf("\n");
  }
}
