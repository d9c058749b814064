// SPDX-License-Identifier: Apache-2.0
// The mask of a prefix language model: tokens of the prompt attend to the whole prompt, later
// tokens to the prompt and the past. Here the prompts of two batch entries have different lengths.
#include <cstdio>
#include <vector>

#include <qkv/qkv.h>

using namespace qkv;

int main() {
  constexpr Index kBatch = 2, kTokens = 6, kWidth = 4;
  const Tensor x(DType::kFloat32, {kBatch, 1, kTokens, kWidth});  // zeros: equal weights
  Tensor weights(DType::kFloat32, {kBatch, 1, kTokens, kTokens});

  const std::vector<int> prompt = {2, 4};
  // The expression uses | and & instead of || and &&, so that the loop over a tile has no branch
  // and vectorises.
  const MaskMod prefix =
      mask_mod([length = prompt.data()](At at) { return (at.j < length[at.b]) | (at.j <= at.i); });

  attention({x, x}, {.masks = {prefix}}, {.weights = weights});
  for (Index b = 0; b < kBatch; ++b) {
    std::printf("prompt of %d tokens\n", prompt[static_cast<std::size_t>(b)]);
    for (Index i = 0; i < kTokens; ++i) {
      for (Index j = 0; j < kTokens; ++j) {
        std::printf(" %.3f", weights.view().at<float>({b, 0, i, j}));
      }
      std::printf("\n");
    }
  }
}
