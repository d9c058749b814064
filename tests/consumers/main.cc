// SPDX-License-Identifier: Apache-2.0
// Stands for a program of another project that uses the library: makes a call, checks its result
// and catches an error.
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include <qkv/qkv.h>

int main() {
  // Scores 0 and log 3: weights 1/4 and 3/4 of the values 0 and 4.
  const std::vector<double> q{1}, k{0, std::log(3)}, v{0, 4};
  std::vector<double> out(1);
  const qkv::Inputs inputs{
      .q = {q.data(), {1, 1}}, .k = {k.data(), {2, 1}}, .v = {v.data(), {2, 1}}};
  qkv::attention(inputs, {.score = qkv::Dot{}}, {.out = {out.data(), {1, 1}}});

  const bool correct = std::abs(out[0] - 3) < 1e-12;
  bool caught = false;
  try {
    qkv::attention(inputs, {.score = qkv::Dot{}}, {.out = {out.data(), {1}}});
  } catch (const qkv::Error& error) {
    caught = !std::string_view(error.what()).empty();
  }
  std::printf("qkv %s: %.12f, error %s\n", QKV_VERSION, out[0], caught ? "caught" : "missed");
  return correct && caught ? 0 : 1;
}
