// SPDX-License-Identifier: Apache-2.0
// Runs with score.patch, which adds the score -|q - k|^2. The reference gives the right output, and
// gradients that agree with central differences; every fused path refuses the score by name.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/qkv.h>

namespace {

using qkv::Index;
using qkv::View;

constexpr Index kRows = 70;
constexpr Index kWidth = 8;
using Numbers = std::vector<double>;

Numbers numbers(double step) {
  Numbers x;
  for (Index n = 0; n < kRows * kWidth; ++n) x.push_back(std::sin(step * static_cast<double>(n)));
  return x;
}

View rows(Numbers& x) { return View(x.data(), {kRows, kWidth}); }

struct Call {
  Numbers q = numbers(0.7), k = numbers(1.3), v = numbers(2.1), dout = numbers(0.4);
  Numbers out = Numbers(kRows * kWidth), lse = Numbers(kRows);
  qkv::Options options{.score = qkv::SquaredDistance{}};

  // sum(out * dout)
  double loss(qkv::Context& context) {
    qkv::Outputs outputs;
    outputs.out = rows(out);
    outputs.lse = View(lse.data(), {kRows});
    qkv::attention({.q = rows(q), .k = rows(k), .v = rows(v)}, options, outputs, context);
    double sum = 0;
    for (std::size_t n = 0; n < out.size(); ++n) sum += out[n] * dout[n];
    return sum;
  }
};

// The larger of two errors, of which the first is no NaN. A NaN as the second gives infinity.
double larger(double error, double other) {
  return std::isnan(other) ? HUGE_VAL : std::max(error, other);
}

// The largest difference of `out` from plain loops.
double error_of_out(const Call& x) {
  double error = 0;
  for (Index i = 0; i < kRows; ++i) {
    double sum = 0;
    Numbers out(kWidth);
    for (Index j = 0; j < kRows; ++j) {
      double s = 0;
      for (Index c = 0; c < kWidth; ++c) {
        const double d = x.q[static_cast<std::size_t>(i * kWidth + c)] -
                         x.k[static_cast<std::size_t>(j * kWidth + c)];
        s -= d * d;
      }
      sum += std::exp(s);
      for (Index c = 0; c < kWidth; ++c) {
        out[static_cast<std::size_t>(c)] +=
            std::exp(s) * x.v[static_cast<std::size_t>(j * kWidth + c)];
      }
    }
    for (Index c = 0; c < kWidth; ++c) {
      error = larger(error, std::fabs(out[static_cast<std::size_t>(c)] / sum -
                                      x.out[static_cast<std::size_t>(i * kWidth + c)]));
    }
  }
  return error;
}

// The largest difference of dq and dk from central differences, at every 37th element.
double error_of_gradients(Call& x, qkv::Context& context) {
  Numbers dq(x.q.size()), dk(x.k.size());
  qkv::attention_backward({.q = rows(x.q), .k = rows(x.k), .v = rows(x.v)}, x.options,
                          {rows(x.out), View(x.lse.data(), {kRows})}, {.out = rows(x.dout)},
                          {.q = rows(dq), .k = rows(dk)}, context);
  double error = 0;
  for (std::size_t n = 0; n < dq.size(); n += 37) {
    for (const auto& [input, gradient] : {std::pair{&x.q, &dq}, std::pair{&x.k, &dk}}) {
      const double was = (*input)[n];
      const double step = 1e-5;
      (*input)[n] = was + step;
      const double above = x.loss(context);
      (*input)[n] = was - step;
      const double below = x.loss(context);
      (*input)[n] = was;
      error = larger(error, std::fabs((above - below) / (2 * step) - (*gradient)[n]));
    }
  }
  return error;
}

}  // namespace

int main() {
  int wrong = 0;
  Call x;
  qkv::Context context;
  x.loss(context);
  const double of_out = error_of_out(x);
  const double of_gradients = error_of_gradients(x, context);
  std::printf("largest error: out %.1e, gradients %.1e\n", of_out, of_gradients);
  wrong += of_out < 1e-12 && of_gradients < 1e-7 ? 0 : 1;
  int refused = 0;
  for (const std::string score : {"dot", "additive"}) {
    for (const std::string_view target : qkv::cpu_targets()) {
      if (target == "reference") continue;
      const std::string path = score + "/" + std::string(target);
      qkv::Context forced;
      forced.force_path(path);
      try {
        x.loss(forced);
        std::printf("%s takes a score that it does not know\n", path.c_str());
        ++wrong;
      } catch (const qkv::Error& error) {
        const bool named =
            std::string(error.what()).find("the squared distance") != std::string::npos;
        if (!named) std::printf("%s: %s\n", path.c_str(), error.what());
        wrong += named ? 0 : 1;
        ++refused;
      }
    }
  }
  std::printf("%d paths refuse it, %d wrong\n", refused, wrong);
  return wrong == 0 && refused > 0 ? 0 : 1;
}
