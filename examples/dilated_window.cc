// SPDX-License-Identifier: Apache-2.0
// A dilated window: each query attends to its own key and to the three before it at steps of 2
// (head 0) or 3 (head 1), as far as these exist.
#include <cstdio>

#include <qkv/qkv.h>

using namespace qkv;

int main() {
  constexpr Index kHeads = 2, kTokens = 16, kWidth = 4;
  const Tensor x(DType::kFloat32, {1, kHeads, kTokens, kWidth});
  Tensor weights(DType::kFloat32, {1, kHeads, kTokens, kTokens});

  const MaskMod dilated = mask_mod([](At at) {
    const int step = at.h == 0 ? 2 : 3;
    const int back = at.i - at.j;
    return (back >= 0) & (back < 4 * step) & (back % step == 0);
  });

  attention({x, x}, {.masks = {dilated}}, {.weights = weights});
  for (Index h = 0; h < kHeads; ++h) {
    std::printf("head %d\n", static_cast<int>(h));
    for (const Index i : {5, 15}) {
      for (Index j = 0; j < kTokens; ++j) {
        std::printf("%c", weights.view().at<float>({0, h, i, j}) > 0 ? '#' : '.');
      }
      std::printf("  query %d\n", static_cast<int>(i));
    }
  }
}
