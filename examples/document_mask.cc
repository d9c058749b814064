// SPDX-License-Identifier: Apache-2.0
// Several documents in one sequence that do not attend to each other. The mask is evaluated once,
// by precompute(); calls then skip all tiles of 64 x 64 pairs between different documents.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <qkv/qkv.h>

using namespace qkv;

int main() {
  constexpr Index kTokens = 256, kWidth = 8;
  const std::vector<Index> lengths = {100, 28, 64, 64};
  std::vector<int> document;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    document.insert(document.end(), static_cast<std::size_t>(lengths[n]), static_cast<int>(n));
  }
  Tensor x(DType::kFloat32, {kTokens, kWidth});
  int n = 0;
  for (float& value : x.values<float>()) value = static_cast<float>(n++ * 37 % 101) / 50 - 1;

  const MaskMod same = mask_mod([d = document.data()](At at) { return d[at.i] == d[at.j]; });
  const MaskMod asked = precompute(same, kTokens, kTokens);

  Tensor together(DType::kFloat32, {kTokens, kWidth});
  attention({x, x, x}, {.masks = {asked}}, {.out = together});

  // A call for each document on its own gives the same rows.
  Index first = 0;
  for (const Index length : lengths) {
    const ConstView part = slice(x.view(), 0, first, first + length, 1);
    Tensor alone(DType::kFloat32, {length, kWidth});
    attention({part, part, part}, {}, {.out = alone});
    float largest = 0;
    for (Index i = 0; i < length; ++i) {
      for (Index c = 0; c < kWidth; ++c) {
        const float a = alone.view().at<float>({i, c});
        const float b = together.view().at<float>({first + i, c});
        largest = std::max(largest, std::abs(a - b));
      }
    }
    std::printf("tokens %3d to %3d: %s\n", static_cast<int>(first),
                static_cast<int>(first + length - 1), largest < 1e-5F ? "as alone" : "differs");
    first += length;
  }
}
