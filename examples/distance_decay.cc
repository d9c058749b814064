// SPDX-License-Identifier: Apache-2.0
// A score that falls with the distance, by a slope for each head. The library derives the gradient
// from the score's expression; the last line printed compares it with a difference quotient.
#include <cmath>
#include <cstdio>
#include <vector>

#include <qkv/qkv.h>

using namespace qkv;

int main() {
  constexpr Index kHeads = 2, kTokens = 5, kWidth = 4;
  Tensor x(DType::kFloat64, {1, kHeads, kTokens, kWidth});
  int n = 0;
  for (double& value : x.values<double>()) value = n++ * 29 % 17 / 8.0 - 1;
  Tensor out(DType::kFloat64, x.shape()), lse(DType::kFloat64, {1, kHeads, kTokens});
  Tensor weights(DType::kFloat64, {1, kHeads, kTokens, kTokens}), dq(DType::kFloat64, x.shape());

  const std::vector<float> slope = {0.25F, 2.0F};
  const ScoreMod decay = score_mod([slope = slope.data()](auto s, At at) {
    return soft_cap(s, 4) - slope[at.h] * abs(at.i - at.j);
  });
  const Options options{.mods = {decay}};

  attention({x, x, x}, options, {.out = out, .lse = lse, .weights = weights});
  for (Index h = 0; h < kHeads; ++h) {
    std::printf("slope %.2f, query 2:", static_cast<double>(slope[static_cast<std::size_t>(h)]));
    for (Index j = 0; j < kTokens; ++j)
      std::printf(" %.3f", weights.view().at<double>({0, h, 2, j}));
    std::printf("\n");
  }

  // The gradient of lse[0,0,2] with respect to q[0,0,2,1], and its difference quotient.
  Tensor dlse(DType::kFloat64, lse.shape());
  dlse.view().at<double>({0, 0, 2}) = 1;
  attention_backward({x, x, x}, options, {out, lse}, {.lse = dlse}, {.q = dq});
  const Tensor q = contiguous(x.view());
  double ends[2];
  for (int end = 0; end < 2; ++end) {
    Tensor moved = contiguous(q.view());
    moved.view().at<double>({0, 0, 2, 1}) += end == 0 ? -1e-6 : 1e-6;
    attention({moved, x, x}, options, {.lse = lse});
    ends[end] = lse.view().at<double>({0, 0, 2});
  }
  std::printf("gradient %.5f, quotient %.5f\n", dq.view().at<double>({0, 0, 2, 1}),
              (ends[1] - ends[0]) / 2e-6);
}
