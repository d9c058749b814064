// SPDX-License-Identifier: Apache-2.0
// Runs with target.patch, which adds the target SSSE3. Neither SSSE3 nor SSE4 has fused
// multiply-adds, so both must give the same bits for every pair product, forward and backward.
// Values of float16, infinities among them, must be read and written unchanged.
#include <cmath>
#include <cstdint>
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

// With a single key, out is that key's value. Returns whether float16 values, given here by their
// bits, come back unchanged.
bool keeps_float16(const std::string& path) {
  const std::vector<std::uint16_t> values{0x7C00, 0xFC00, 0x7BFF, 0x0001, 0x3C01};
  const auto width = static_cast<Index>(values.size());
  std::vector<std::uint16_t> q(values.size()), v(values), out(values.size());
  const auto row = [&](std::vector<std::uint16_t>& x) {
    return View(x.data(), qkv::DType::kFloat16, {1, width}, {width, 1});
  };
  qkv::Context context;
  context.force_path(path);
  qkv::attention({.q = row(q), .k = row(q), .v = row(v)}, {}, {.out = row(out)}, context);
  const bool same = out == values;
  std::printf("%s: values of float16 %s\n", path.c_str(), same ? "are kept" : "change");
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
  const bool half = keeps_float16("dot/ssse3");
  const bool sums = agree("additive", additive);
  return dot && half && sums ? 0 : 1;
}
