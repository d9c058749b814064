// SPDX-License-Identifier: Apache-2.0
// Runs with mask.patch, which adds Every{step}. On every path of this processor, forward and
// backward, Every{3} gives the results of the same mask given as an array, for a whole sequence and
// for a part of one that does not begin at query 0 and key 0.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/qkv.h>

namespace {

using qkv::ConstView;
using qkv::Index;
using qkv::View;

constexpr Index kRows = 70;
constexpr Index kWidth = 8;
using Numbers = std::vector<float>;

Numbers numbers(double step) {
  Numbers x;
  for (Index n = 0; n < kRows * kWidth; ++n) {
    x.push_back(static_cast<float>(std::sin(step * static_cast<double>(n))));
  }
  return x;
}

struct Results {
  Numbers out = Numbers(kRows * kWidth), dq = out, dk = out, dv = out, lse = Numbers(kRows);
};

View rows(Numbers& x) { return View(x.data(), {kRows, kWidth}); }

// A part of a sequence has its queries from kFirstQuery on and its keys from kFirstKey on.
constexpr Index kFirstQuery = 100;
constexpr Index kFirstKey = 20;

Results results(const std::string& path, const qkv::Mask& mask, bool is_part) {
  Numbers q = numbers(0.7), k = numbers(1.3), v = numbers(2.1), dout = numbers(0.4);
  qkv::Context context;
  context.force_path(path);
  qkv::Options options;
  options.masks.push_back(mask);
  Results r;
  qkv::Inputs inputs{.q = rows(q), .k = rows(k), .v = rows(v)};
  if (is_part) inputs.shard = qkv::Shard{kFirstQuery, 200, kFirstKey, 200};
  qkv::Outputs outputs;
  outputs.out = rows(r.out);
  outputs.lse = View(r.lse.data(), {kRows});
  qkv::attention(inputs, options, outputs, context);
  qkv::InputGradients to{.q = rows(r.dq), .k = rows(r.dk), .v = rows(r.dv)};
  qkv::attention_backward(inputs, options, {outputs.out, outputs.lse}, {.out = rows(dout)}, to,
                          context);
  return r;
}

}  // namespace

int main() {
  int wrong = 0;
  int checks = 0;
  std::vector<std::string> paths;
  for (const std::string_view target : qkv::cpu_targets()) {
    const std::string name(target);
    paths.push_back(name == "reference" ? name : "dot/" + name);
  }
  for (const bool is_part : {false, true}) {
    const Index shift = is_part ? kFirstQuery - kFirstKey : 0;
    std::vector<unsigned char> keep(kRows * kRows);
    for (Index i = 0; i < kRows; ++i) {
      for (Index j = 0; j < kRows; ++j) {
        keep[static_cast<std::size_t>(i * kRows + j)] = (i - j + shift) % 3 == 0 ? 1 : 0;
      }
    }
    const ConstView array(keep.data(), {kRows, kRows});
    for (const std::string& path : paths) {
      const Results got = results(path, qkv::Every{3}, is_part);
      const Results want = results(path, qkv::Keep{array}, is_part);
      const bool same = got.out == want.out && got.lse == want.lse && got.dq == want.dq &&
                        got.dk == want.dk && got.dv == want.dv;
      if (!same) {
        std::printf("%s: Every{3} of %s sequence is not what the array says\n", path.c_str(),
                    is_part ? "a part of a" : "a whole");
      }
      wrong += same ? 0 : 1;
      ++checks;
    }
  }
  std::printf("%d calls, %d wrong\n", checks, wrong);
  return wrong == 0 && checks > 2 ? 0 : 1;
}
