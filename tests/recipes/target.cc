// SPDX-License-Identifier: Apache-2.0
// With target.patch applied: SSSE3, which has no fused multiply-add either, gives the bits of SSE4
// for every product of pairs, forward and backward.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <qkv/qkv.h>

namespace {

using qkv::Index;
using qkv::View;

constexpr Index kRows = 150;
constexpr Index kWidth = 40;
constexpr Index kUnits = 33;
using Numbers = std::vector<float>;

Numbers numbers(Index count, double step) {
  Numbers x;
  for (Index n = 0; n < count; ++n) {
    x.push_back(static_cast<float>(std::sin(step * static_cast<double>(n))));
  }
  return x;
}

View rows(Numbers& x) { return View(x.data(), {kRows, kWidth}); }

// out, lse, dq, dk, dv, one after the other.
Numbers results(const std::string& path, const qkv::Options& options) {
  Numbers q = numbers(kRows * kWidth, 0.7), k = numbers(kRows * kWidth, 1.3),
          v = numbers(kRows * kWidth, 2.1), dout = numbers(kRows * kWidth, 0.4);
  Numbers out(q.size()), dq = out, dk = out, dv = out, lse(kRows);
  qkv::Context context;
  context.force_path(path);
  const qkv::Inputs inputs{.q = rows(q), .k = rows(k), .v = rows(v)};
  const View of_lse(lse.data(), {kRows});
  qkv::attention(inputs, options, {.out = rows(out), .lse = of_lse}, context);
  qkv::attention_backward(inputs, options, {rows(out), of_lse}, {.out = rows(dout)},
                          {.q = rows(dq), .k = rows(dk), .v = rows(dv)}, context);
  Numbers all;
  for (const Numbers* x : {&out, &lse, &dq, &dk, &dv}) all.insert(all.end(), x->begin(), x->end());
  return all;
}

bool agree(const std::string& product, const qkv::Options& options) {
  const Numbers want = results(product + "/sse4", options);
  const Numbers got = results(product + "/ssse3", options);
  const bool same = std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
  std::printf("%s/ssse3: %zu numbers, %s\n", product.c_str(), got.size(),
              same ? "the bits of SSE4" : "other bits than SSE4");
  return same;
}

}  // namespace

int main() {
  Numbers w = numbers(kUnits * kWidth, 0.9), u = numbers(kUnits, 1.7);
  qkv::Options additive;
  additive.score = qkv::Additive{.wq = View(w.data(), {kUnits, kWidth}),
                                 .wk = View(w.data(), {kUnits, kWidth}),
                                 .v = View(u.data(), {kUnits}),
                                 .b = {}};
  const bool dot = agree("dot", {.masks = {qkv::Causal{}}});
  return dot && agree("additive", additive) ? 0 : 1;
}
