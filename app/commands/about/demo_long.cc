// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <qkv/attention.h>
#include <qkv/target.h>
#include <qkv/tensor.h>

#include "bench/measure.h"
#include "commands/about/demo.h"
#include "commands/shell/memory.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

constexpr Index kHeads = 8, kWidth = 64;
// Positions of the keys planted for the last query of head 0, in thousandths of the sequence.
constexpr Index kPlanted[] = {731, 158, 402, 967, 23};
constexpr Index kFound = std::size(kPlanted);

// Whether this build is optimised and without sanitizers. NDEBUG is checked too, since -Og defines
// __OPTIMIZE__.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__) || \
    !defined(NDEBUG)
constexpr bool kFastBuild = false;
#else
constexpr bool kFastBuild = true;
#endif

constexpr int kBursts = 10;  // bursts in each measurement of the peak

qkv::Options causal() {
  qkv::Options options;
  options.masks = {qkv::Causal{}};
  return options;
}

// The number of tokens to use by default: fewer where the path or the build is slow.
Index default_tokens() {
  constexpr Index kTokens = 16384;
  const Tensor one(DType::kFloat32, {1, kHeads, 1, kWidth});
  qkv::Context context;
  const qkv::Plan plan({one, one, one, {}, {}}, causal(), context);
  const Index tokens = plan.backward_path() == "reference" ? kTokens / 32
                       : qkv::cpu_target() == "sse4"       ? kTokens / 4
                                                           : kTokens;
  return kFastBuild ? tokens : tokens / 8;
}

// ---- the sequence ---------------------------------------------------------------------------

// The inputs and the results of both passes, float32. Inputs are random numbers of mean 0 and
// variance 1, except that five keys of head 0 resemble its last query.
struct Sequence {
  explicit Sequence(Index tokens)
      : q(DType::kFloat32, {1, kHeads, tokens, kWidth}),
        k(DType::kFloat32, q.shape()),
        v(DType::kFloat32, q.shape()),
        out(DType::kFloat32, q.shape()),
        lse(DType::kFloat32, {1, kHeads, tokens}),
        dout(DType::kFloat32, q.shape()),
        dq(DType::kFloat32, q.shape()),
        dk(DType::kFloat32, q.shape()),
        dv(DType::kFloat32, q.shape()) {
    std::mt19937_64 random(0);
    for (Tensor* tensor : {&q, &k, &v, &dout}) {
      std::size_t count = 0;
      for (float& value : tensor->values<float>()) {
        if (count++ % 65536 == 0 && stop_flag()) throw qkv::Cancelled("demo");
        value = (static_cast<float>(random() >> 40) * 0x1p-23F - 1) * std::sqrt(3.0F);
      }
    }
    const float* query = q.values<float>().data() + (tokens - 1) * kWidth;
    float likeness = 1.5F;
    for (const Index place : kPlanted) {
      float* key = k.values<float>().data() + tokens * place / 1000 * kWidth;
      for (Index c = 0; c < kWidth; ++c) key[c] = likeness * query[c];
      likeness -= 0.05F;
    }
  }
  Index tokens() const { return q.size(2); }
  qkv::Inputs inputs() const { return {q, k, v, {}, {}}; }
  // The floating-point operations of the causal forward pass; a multiply-add counts as two.
  double operations() const {
    const auto t = static_cast<double>(tokens());
    return 4.0 * static_cast<double>(kHeads * kWidth) * t * (t + 1) / 2;
  }
  double backward_operations() const { return 2.5 * operations(); }
  // The bytes of all weights [1,H,T,T]; the gradients of the weights would take as many.
  double matrix_bytes() const {
    const auto t = static_cast<double>(tokens());
    return sizeof(float) * static_cast<double>(kHeads) * t * t;
  }
  static constexpr int kArrays = 8;  // arrays of the shape of q
  Tensor q, k, v, out, lse, dout, dq, dk, dv;
};

// The kFound keys with the largest weights for the last query of head 0, as text. They are computed
// by a separate call, whose queries are the last one of each head.
std::string top_keys_text(const Sequence& x, qkv::Context& context) {
  Tensor weights(DType::kFloat32, {1, kHeads, 1, kFound});
  Tensor keys(DType::kInt64, weights.shape());
  const auto last = qkv::slice(x.q.view(), 2, x.tokens() - 1, x.tokens());
  qkv::Outputs outputs;
  outputs.top = {kFound, weights, keys};
  qkv::attention({last, x.k, {}, {}, {}}, {}, outputs, context);
  std::string text;
  for (Index n = 0; n < kFound; ++n) {
    text += fmt::format("{}{} ({:.0f} %)", n == 0 ? "" : ", ",
                        keys.view().at<std::int64_t>({0, 0, 0, n}),
                        100 * weights.view().at<float>({0, 0, 0, n}));
  }
  return text;
}

// ---- time -----------------------------------------------------------------------------------

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The peak to compare with, in operations per second: the rate of multiply-adds in registers on all
// threads at once.
class Peak {
 public:
  // `operations` is the work of the measured call. The peak is not measured if the call is too
  // short for a meaningful comparison.
  Peak(const qkv::Executor& executor, double operations)
      : executor_(executor),
        given_(kFastBuild && qkv::cpu_target() != "reference" && operations > 1e9) {}
  bool given() const { return given_; }
  // Runs bursts of about 10 ms each, so that the time to wake the threads hardly counts.
  void measure(int bursts) {
    if (!given()) return;
    const qkv::Executor::Body burst = [](void* operations, Index n) {
      const double done = qkv::multiply_add_burst(qkv::cpu_target(), DType::kFloat32, 3'000'000);
      if (n == 0) *static_cast<double*>(operations) = done;
    };
    for (int n = 0; n < bursts; ++n) {
      double each = 0;
      const double seconds =
          seconds_of([&] { executor_.run(executor_.concurrency(), burst, &each); });
      rates_.push_back(each * executor_.concurrency() / seconds);
    }
  }
  double best() const { return *std::ranges::max_element(rates_); }
  // How far the median burst is below the best one, as a part of the best.
  double spread() const { return 1 - qkv::bench::median_of(rates_) / best(); }

 private:
  const qkv::Executor& executor_;
  bool given_;
  std::vector<double> rates_;
};

// For each round, the seconds of the plain forward pass, of the backward pass and of the forward
// pass with a mod (a user-defined score), and the time with the mod divided by the plain time.
struct Rounds {
  std::vector<double> plain;
  std::vector<double> backward;
  std::vector<double> with_mod;
  std::vector<double> ratios;
};

// Measures the three calls and the peak in turn, so that clock drift affects all of them alike.
Rounds run_in_turn(Sequence& x, qkv::Plan& plain, qkv::Plan& with_mod, Peak& peak) {
  constexpr double kSeconds = 6;
  constexpr std::size_t kMostRounds = 5;
  const qkv::Inputs inputs = x.inputs();
  const qkv::Outputs outputs{.out = x.out, .lse = x.lse};
  const qkv::InputGradients gradients{.q = x.dq, .k = x.dk, .v = x.dv};
  plain.run(inputs, outputs);  // not timed, since it touches the memory for the first time
  Rounds rounds;
  double passed = 0;
  while (rounds.plain.empty() || (passed < kSeconds && rounds.plain.size() < kMostRounds)) {
    peak.measure(kBursts);
    rounds.plain.push_back(seconds_of([&] { plain.run(inputs, outputs); }));
    // The result goes into dq's memory, since `out` must keep the plain call's result.
    rounds.with_mod.push_back(seconds_of([&] { with_mod.run(inputs, {.out = x.dq}); }));
    rounds.ratios.push_back(rounds.with_mod.back() / rounds.plain.back());
    peak.measure(kBursts);
    rounds.backward.push_back(seconds_of([&] {
      plain.backward(inputs, {x.out, x.lse}, {.out = x.dout}, gradients);
    }));
    passed += rounds.plain.back() + rounds.backward.back() + rounds.with_mod.back();
  }
  return rounds;
}

std::string time_line(double operations, double seconds, const Peak& peak) {
  const double rate = operations / seconds;
  std::string text = fmt::format("{:.3g} s, {:.3g} GFLOP/s", seconds, rate * 1e-9);
  if (!peak.given()) return text;
  if (peak.spread() > qkv::bench::kMostPeakSpread) {
    return text + fmt::format(" (noisy: bursts of bare multiply-adds differ by {:.0f} %)",
                              100 * peak.spread());
  }
  return text + fmt::format(", {:.0f} % of the {:.0f} that bare multiply-adds reach",
                            100 * rate / peak.best(), peak.best() * 1e-9);
}

}  // namespace

LongSequence long_sequence(std::optional<Index> asked, const Common& common) {
  const Index tokens = asked.value_or(default_tokens());
  const double size = static_cast<double>(kHeads * kWidth * tokens) * sizeof(float);
  check_memory(Sequence::kArrays * size, fmt::format("{} tokens", tokens), "--tokens takes fewer");
  qkv::Context context(qkv::Executor::threads(common.threads));
  context.set_stop_flag(&stop_flag());
  Sequence x(tokens);

  qkv::Options options = causal();
  qkv::Plan plain(x.inputs(), options, context);
  std::vector<float> slope(kHeads);
  for (std::size_t h = 0; h < slope.size(); ++h)
    slope[h] = std::ldexp(1.0F, -5 - static_cast<int>(h));
  options.mods = {qkv::score_mod(
      [slope = slope.data()](auto s, qkv::At at) { return s - slope[at.h] * abs(at.i - at.j); })};
  qkv::Plan with_mod(x.inputs(), options, context);

  const std::string found = top_keys_text(x, context);
  Peak peak(context.executor(), x.operations());
  const Rounds rounds = run_in_turn(x, plain, with_mod, peak);
  const int threads = context.executor().concurrency();
  std::string report = fmt::format(
      "4 Fast: {} tokens, {} heads of {}, causal, float32: {} on {} thread{}\n"
      "time      {}\n"
      "memory    {:.1f} MB of scratch; the full weights, {} x {} x {}, would take {:.4g} MB\n"
      "backward  {}\n"
      "          {}, {:.1f} MB of scratch; weights and their gradients would take {:.5g} MB\n"
      "top keys  {}\n"
      "          of head 0's last query: five keys like it were planted at these places, in this "
      "order\n",
      tokens, kHeads, kWidth, plain.path(), threads, threads == 1 ? "" : "s",
      time_line(x.operations(), qkv::bench::median_of(rounds.plain), peak),
      static_cast<double>(plain.scratch_bytes()) * 1e-6, kHeads, tokens, tokens,
      1e-6 * x.matrix_bytes(),
      time_line(x.backward_operations(), qkv::bench::median_of(rounds.backward), peak),
      plain.backward_path(), static_cast<double>(plain.backward_scratch_bytes()) * 1e-6,
      2e-6 * x.matrix_bytes(), found);
  std::string custom = fmt::format(
      "a score of one line, score_mod(s - slope[at.h] * abs(at.i - at.j)): {:.2f} x that time\n",
      qkv::bench::median_of(rounds.ratios));
  return {std::move(report), std::move(custom)};
}
