// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/expression.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// The gradients of arrays that expressions read, on every path: they agree with central differences
// of the forward pass and with sums over a bias's gradient, and are bit-identical for any number of
// threads.
namespace qkv::test {
namespace {

constexpr Index kB = 2;
constexpr Index kH = 4;
constexpr Index kG = 2;
constexpr Index kTq = 150;  // two blocks of queries, two blocks of keys
constexpr Index kTk = 203;
constexpr Index kD = 8;

// A call with three mods: the expression s * gain[h] + table[h, j - i + 149], the C++ function
// s - s^2 / 64, and the expression cap[h] * tanh(s / cap[h]).
struct Call {
  DType dtype;
  SeededScore score;
  Tensor q, k, v, dout, dlse, gain, table, cap;
  Options options;

  explicit Call(DType type, ScoreKind kind = ScoreKind::kDot)
      : dtype(type),
        score(kind, {.H = kH, .Dq = kD, .Dk = kD, .U = 6}, type),
        q(normal({kB, kH, kTq, kD}, 1, type)),
        k(normal({kB, kG, kTk, kD}, 2, type)),
        v(normal({kB, kG, kTk, kD}, 3, type)),
        dout(normal({kB, kH, kTq, kD}, 4, type)),
        dlse(normal({kB, kH, kTq}, 5, type)),
        gain(normal({kH}, 6, type)),
        table(normal({kH, kTq + kTk - 1}, 7, type)),
        cap(normal({kH}, 8, type)) {
    for (Index h = 0; h < kH; ++h) {
      core::store(type, cap.view().data(), h, 2.0 + 0.25 * static_cast<double>(h));
    }
    use(gain, table, cap);
    options.score = score.score();
  }
  // Sets the mods, which read these arrays.
  void use(const ConstView& its_gain, const ConstView& its_table, const ConstView& its_cap) {
    const Symbols x;
    const Captured g(its_gain, "gain"), t(its_table, "table"), c(its_cap, "cap");
    captured = {g, t, c};
    options.mods = {score_mod(x.s * g(x.h) + t(x.h, x.j - x.i + (kTq - 1))),
                    score_mod([](auto s, At) { return s - s * s * 0.015625F; }),
                    score_mod(c(x.h) * tanh(x.s / c(x.h)))};
  }
  Inputs inputs() const { return {q, k, v}; }
  double loss(Context& context) const {
    Tensor out(dtype, q.shape()), lse(dtype, dlse.shape());
    attention(inputs(), options, {.out = out, .lse = lse}, context);
    double sum = 0;
    const auto add = [&](const ConstView& a, const ConstView& b) {
      const std::vector<double> x = values_of(a), y = values_of(b);
      for (std::size_t n = 0; n < x.size(); ++n) sum += x[n] * y[n];
    };
    add(out, dout);
    add(lse, dlse);
    return sum;
  }
  // Runs both passes; `to` has the buffers of the requested gradients.
  void backward(Context& context, const InputGradients& to) const {
    Tensor out(dtype, q.shape()), lse(dtype, dlse.shape());
    attention(inputs(), options, {.out = out, .lse = lse}, context);
    attention_backward(inputs(), options, {out, lse}, {.out = dout, .lse = dlse}, to, context);
  }

  std::vector<Captured> captured;
};

// Buffers for the gradients of gain, table and cap.
struct Got {
  Tensor gain, table, cap;

  explicit Got(const Call& call)
      : gain(call.dtype, {kH}), table(call.dtype, {kH, kTq + kTk - 1}), cap(call.dtype, {kH}) {
    for (Tensor* x : list()) {
      for (Index n = 0; n < x->element_count(); ++n) {
        core::store(x->dtype(), x->view().data(), n, -777.0);  // no gradient is -777
      }
    }
  }
  std::vector<Tensor*> list() { return {&gain, &table, &cap}; }
  InputGradients asked(const Call& call, Write write = Write::kOverwrite) {
    InputGradients to;
    for (std::size_t n = 0; n < 3; ++n) {
      to.captured.push_back({call.captured[n], list()[n]->view()});
    }
    to.write = write;
    return to;
  }
  std::vector<double> values() {
    std::vector<double> all;
    for (Tensor* x : list()) {
      const std::vector<double> of = values_of(*x);
      all.insert(all.end(), of.begin(), of.end());
    }
    return all;
  }
};

std::vector<double> gradients(const Call& call, Context& context) {
  Got got(call);
  call.backward(context, got.asked(call));
  return got.values();
}

const std::vector<ScoreKind> kKinds{ScoreKind::kDot, ScoreKind::kAdditive};

void set_options(Call& call, int variant) {
  if (variant == 0) return;
  call.options.masks = {Causal{}};
  call.options.softcap = 7;
  call.options.dropout = {.p = 0.25, .seed = 11};
}

// Compares some elements of the gradients with central differences of the loss, on the first fast
// path and the reference; AgreeWithTheReference covers the other paths.
TEST(CapturedGradients, AreDifferencesOfTheForwardPass) {
  for (const ScoreKind kind : kKinds) {
    const std::vector<std::string> paths = all_backward_paths(kind);  // the reference is last
    for (int variant = 0; variant < 2; ++variant) {
      Call call(DType::kFloat64, kind);
      set_options(call, variant);
      for (const std::string& path : {paths.front(), paths.back()}) {
        Context context = context_on(path);
        Got got(call);
        call.backward(context, got.asked(call));
        const std::vector<Tensor*> arrays{&call.gain, &call.table, &call.cap};
        for (std::size_t n = 0; n < arrays.size(); ++n) {
          const Index count = arrays[n]->element_count();
          for (Index at = n == 1 ? 40 : 0; at < count; at += n == 1 ? 311 : 3) {
            double& x = arrays[n]->values<double>()[static_cast<std::size_t>(at)];
            const double before = x;
            constexpr double kStep = 1e-5;
            x = before + kStep;
            const double above = call.loss(context);
            x = before - kStep;
            const double below = call.loss(context);
            x = before;
            const double want = (above - below) / (2 * kStep);
            EXPECT_NEAR(got.list()[n]->values<double>()[static_cast<std::size_t>(at)], want,
                        1e-7 * (1 + std::fabs(want)))
                << path << ", array " << n << " at " << at << ", variant " << variant;
          }
        }
      }
    }
  }
}

TEST(CapturedGradients, AgreeWithTheReference) {
  for (const ScoreKind kind : kKinds) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      Call call(dtype, kind);
      set_options(call, 1);
      Context reference = context_on(kReferencePath);
      const std::vector<double> want = gradients(call, reference);
      double largest = 0;
      for (const double x : want) largest = std::max(largest, std::fabs(x));
      for (const std::string& path : all_backward_paths(kind)) {
        Context context = context_on(path);
        const std::vector<double> got = gradients(call, context);
        for (std::size_t n = 0; n < want.size(); ++n) {
          ASSERT_NEAR(got[n], want[n], largest * (dtype == DType::kFloat32 ? 3e-5 : 1e-12))
              << path << " at " << n;
        }
      }
    }
  }
}

// Each element of the gradient of a table that is added to scores is a sum of elements of a bias's
// gradient, which is the same whether or not the tables' gradients are requested.
TEST(CapturedGradients, OfATableAreSumsOfTheBiasGradient) {
  Call call(DType::kFloat64);
  const Symbols x;
  const Tensor reversed = normal(call.table.shape(), 12, DType::kFloat64);
  const Captured table(ConstView(call.table), "table"), back(ConstView(reversed), "reversed");
  const Tensor zero(DType::kFloat64, {kB, kH, kTq, kTk});
  call.options.mods = {
      score_mod(x.s + table(x.h, x.j - x.i + (kTq - 1)) + back(x.h, x.i - x.j + (kTk - 1)))};
  call.options.bias = zero;
  call.options.masks = {Window{20, 30}};
  for (const std::string& path : all_backward_paths()) {
    Context context = context_on(path);
    Tensor dbias(DType::kFloat64, zero.shape()), dtable(DType::kFloat64, call.table.shape());
    Tensor dback(DType::kFloat64, call.table.shape());
    Tensor alone(DType::kFloat64, zero.shape());
    call.backward(context, {.bias = alone});
    call.backward(context, {.bias = dbias, .captured = {{table, dtable}, {back, dback}}});
    EXPECT_EQ(values_of(dbias), values_of(alone)) << path;
    std::vector<double> want(static_cast<std::size_t>(call.table.element_count()));
    const std::vector<double> ds = values_of(dbias);
    for (Index n = 0; n < dbias.element_count(); ++n) {
      const Index j = n % kTk, i = n / kTk % kTq, h = n / kTk / kTq % kH;
      want[static_cast<std::size_t>(h * (kTq + kTk - 1) + j - i + kTq - 1)] +=
          ds[static_cast<std::size_t>(n)];
    }
    const std::vector<double> got = values_of(dtable), of_back = values_of(dback);
    constexpr Index kWidth = kTq + kTk - 1;
    for (Index h = 0; h < kH; ++h) {
      for (Index n = 0; n < kWidth; ++n) {
        const double sum = want[static_cast<std::size_t>(h * kWidth + n)];
        ASSERT_NEAR(got[static_cast<std::size_t>(h * kWidth + n)], sum, 1e-12) << path;
        ASSERT_NEAR(of_back[static_cast<std::size_t>(h * kWidth + kWidth - 1 - n)], sum, 1e-12)
            << path;
      }
    }
  }
}

TEST(CapturedGradients, HaveTheSameBitsForAnyNumberOfThreads) {
  for (const ScoreKind kind : kKinds) {
    // Captured gradients are summed in float64: float64 buffers show the order of summation.
    Call call(DType::kFloat64, kind);
    set_options(call, 1);
    for (const std::string& path : all_backward_paths(kind)) {
      Context one = context_on(path);
      const std::vector<double> want = gradients(call, one);
      for (int run = 0; run < 2; ++run) {
        Context several = context_on(path, 3 + run);
        ASSERT_EQ(gradients(call, several), want) << path;
      }
    }
  }
}

// Where batch entries share k and its gradient is requested, one task runs a block of keys for all
// entries. The task adds the sums of captured gradients entry by entry.
TEST(CapturedGradients, OfEntriesWithSharedKeysHaveTheSameBits) {
  Call call(DType::kFloat64);
  call.k = normal({1, kG, kTk, kD}, 2, call.dtype);
  call.v = normal({1, kG, kTk, kD}, 3, call.dtype);
  Context reference = context_on(kReferencePath);
  const std::vector<double> want = gradients(call, reference);
  const auto with_dk = [&](const std::string& path, int threads) {
    Context context = context_on(path, threads);
    Got got(call);
    Tensor dk(call.dtype, call.k.shape());
    InputGradients to = got.asked(call);
    to.k = dk;
    call.backward(context, to);
    return got.values();
  };
  for (const std::string& path : fast_backward_paths()) {
    const std::vector<double> got = with_dk(path, 1);
    EXPECT_EQ(with_dk(path, 4), got) << path;
    for (std::size_t n = 0; n < want.size(); ++n) {
      ASSERT_NEAR(got[n], want[n], 1e-10) << path << " at " << n;
    }
  }
}

// Strides of the arrays and of the gradients change nothing; kAccumulate adds to the buffers.
TEST(CapturedGradients, TakeAnyStridesAndAccumulate) {
  Call call(DType::kFloat32);
  for (const std::string& path : all_backward_paths()) {
    Context context = context_on(path);
    call.use(call.gain, call.table, call.cap);
    const std::vector<double> want = gradients(call, context);
    Tensor wide(DType::kFloat32, {kTq + kTk - 1, kH, 3}), back(DType::kFloat32, wide.shape());
    const auto strided = [](Tensor& x) {
      return transpose(reshape(slice(x, 2, 1, 2), {kTq + kTk - 1, kH}), 0, 1);
    };
    copy(call.table, strided(wide));
    call.use(call.gain, strided(wide), call.cap);
    Got got(call);
    const auto run = [&](Write write) {
      InputGradients to = got.asked(call, write);
      to.captured[1].to = strided(back);
      call.backward(context, to);
      copy(strided(back), got.table);
      return got.values();
    };
    EXPECT_EQ(run(Write::kOverwrite), want) << path;
    for (Tensor* x : {&got.gain, &back, &got.cap}) std::ranges::fill(x->values<float>(), 0.5F);
    const std::vector<double> added = run(Write::kAccumulate);
    for (std::size_t n = 0; n < want.size(); ++n) {
      ASSERT_NEAR(added[n] - 0.5, want[n], 1e-5 * (1 + std::fabs(want[n]))) << path << " at " << n;
    }
    for (const Index gap : {0, 2}) {
      for (const double value : values_of(slice(back.view(), 2, gap, gap + 1))) {
        ASSERT_EQ(value, 0.5) << path << ": written between the elements of a gradient";
      }
    }
  }
}

// Without queries the gradients are 0, or with kAccumulate the buffer is unchanged.
TEST(CapturedGradients, AreZeroWithoutQueries) {
  const Tensor q(DType::kFloat32, {1, 1, 0, kD}), k = normal({1, 1, 5, kD}, 1, DType::kFloat32);
  const Tensor table = normal({5}, 2, DType::kFloat32), lse(DType::kFloat32, {1, 1, 0});
  const Symbols x;
  const Captured t(table, "table");
  Options options;
  options.mods = {score_mod(x.s + t(x.j))};
  for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
    Tensor dtable(DType::kFloat32, {5});
    std::ranges::fill(dtable.values<float>(), 0.5F);
    InputGradients to;
    to.captured = {{t, dtable}};
    to.write = write;
    attention_backward({q, k, k}, options, {.out = q, .lse = lse}, {.out = q}, to);
    const double want = write == Write::kOverwrite ? 0 : 0.5;
    EXPECT_EQ(values_of(dtable), std::vector<double>(5, want));
  }
}

// No gradient of a captured array depends on masked keys, or on elements of the array that only
// masked pairs read.
TEST(CapturedGradients, OfMaskedPairsAreZero) {
  for (const ScoreKind kind : kKinds) {
    Call call(DType::kFloat32, kind);
    const std::vector<std::int64_t> lengths{kTk - 31, kTk - 31};
    call.options.masks = {KeyLengths{ConstView(lengths)}};
    for (const std::string& path : all_backward_paths(kind)) {
      Context context = context_on(path);
      const std::vector<double> want = gradients(call, context);
      EXPECT_EQ(want[static_cast<std::size_t>(kH + kTq + kTk - 2)], 0);
      Call poisoned(DType::kFloat32, kind);
      poisoned.options.masks = call.options.masks;
      constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
      for (Index row = 0; row < kB * kG; ++row) {
        for (Index j = kTk - 31; j < kTk; ++j) {
          poisoned.k.values<float>()[static_cast<std::size_t>((row * kTk + j) * kD)] = kNaN;
          poisoned.v.values<float>()[static_cast<std::size_t>((row * kTk + j) * kD + 1)] = kNaN;
        }
      }
      for (Index h = 0; h < kH; ++h) {
        poisoned.table.values<float>()[static_cast<std::size_t>((h + 1) * (kTq + kTk - 1) - 1)] =
            kNaN;
      }
      ASSERT_EQ(gradients(poisoned, context), want) << path;
    }
  }
}

// The gradients of a packed call are the sums of the gradients of one call for each sequence.
TEST(CapturedGradients, OfPackedSequencesAreSums) {
  const Index T = 90;
  const Tensor q = normal({T, kH, kD}, 1, DType::kFloat64), k = normal({T, kG, kD}, 2, q.dtype());
  const Tensor v = normal({T, kG, kD}, 3, q.dtype()), dout = normal({T, kH, kD}, 4, q.dtype());
  const Tensor table = normal({kH, 2 * T}, 5, q.dtype());
  const std::vector<std::int64_t> starts{0, 17, 60, T};
  const Symbols x;
  const Captured t(ConstView(table), "table");
  Options options;
  options.mods = {score_mod(x.s + t(x.h, x.j - x.i + T) * to_number(x.b + 1))};
  for (const std::string& path : all_backward_paths()) {
    Context context = context_on(path);
    Tensor out(q.dtype(), q.shape()), lse(q.dtype(), {kH, T});
    Tensor got(q.dtype(), table.shape()), sum(q.dtype(), table.shape());
    const Inputs packed{.q = q,
                        .k = k,
                        .v = v,
                        .cu_seqlens_q = ConstView(starts),
                        .cu_seqlens_k = ConstView(starts)};
    attention(packed, options, {.out = out, .lse = lse}, context);
    attention_backward(packed, options, {out, lse}, {.out = dout}, {.captured = {{t, got}}},
                       context);
    for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
      const Index length = starts[n + 1] - starts[n];
      const auto part = [&](const ConstView& whole) {
        const ConstView rows = slice(whole, 0, starts[n], starts[n + 1]);
        return permute(reshape(rows, {1, length, whole.size(1), kD}), {0, 2, 1, 3});
      };
      Options one;
      one.mods = {score_mod(x.s + t(x.h, x.j - x.i + T) * static_cast<double>(n + 1))};
      Tensor its_out(q.dtype(), {1, kH, length, kD}), its_lse(q.dtype(), {1, kH, length});
      const Inputs inputs{part(q), part(k), part(v)};
      attention(inputs, one, {.out = its_out, .lse = its_lse}, context);
      attention_backward(inputs, one, {its_out, its_lse}, {.out = part(dout)},
                         {.captured = {{t, sum}}, .write = Write::kAccumulate}, context);
    }
    const std::vector<double> want = values_of(sum), values = values_of(got);
    for (std::size_t n = 0; n < want.size(); ++n) {
      ASSERT_NEAR(values[n], want[n], 1e-12) << path << " at " << n;
    }
  }
}

// Indices may be computed from numbers, so that they cannot be bounded in advance, or read from
// another array; and an array may have a single element.
TEST(CapturedGradients, OfArraysWithAnyIndices) {
  Call call(DType::kFloat64);
  const Symbols x;
  const Tensor buckets = normal({6, kH}, 9, DType::kFloat64);
  const Tensor temperature = normal({1}, 10, DType::kFloat64);
  const std::vector<std::int32_t> document(static_cast<std::size_t>(kTk), 3);
  const Captured b(ConstView(buckets), "buckets"), t(ConstView(temperature), "temperature");
  const Captured d(ConstView(document), "document");
  const Expression bucket =
      min(to_integer(log(to_number(abs(x.i - x.j) + 1)) * 1.5), Expression(5));
  call.options.mods = {score_mod(x.s * exp(t(0)) + b(bucket, x.h) + b(d(x.j), x.h) * 0.25)};
  for (const std::string& path : all_backward_paths()) {
    Context context = context_on(path);
    Tensor of_buckets(DType::kFloat64, buckets.shape()), of_t(DType::kFloat64, {1});
    call.backward(context, {.captured = {{b, of_buckets}, {t, of_t}}});
    const auto expect = [&](const Tensor& array, const Tensor& got) {
      for (Index n = 0; n < array.element_count(); n += 5) {
        double& value = const_cast<double&>(array.values<double>()[static_cast<std::size_t>(n)]);
        const double before = value;
        value = before + 1e-5;
        const double above = call.loss(context);
        value = before - 1e-5;
        const double below = call.loss(context);
        value = before;
        const double want = (above - below) / 2e-5;
        EXPECT_NEAR(got.values<double>()[static_cast<std::size_t>(n)], want,
                    1e-6 * (1 + std::fabs(want)))
            << path << " at " << n;
      }
    };
    expect(buckets, of_buckets);
    expect(temperature, of_t);
  }
}

TEST(CapturedGradients, RefusedRequestsSayWhy) {
  Call call(DType::kFloat32);
  Context context;
  const auto message = [&](const CapturedGradient& one, const CapturedGradient* other = nullptr) {
    InputGradients to;
    to.captured.push_back(one);
    if (other != nullptr) to.captured.push_back(*other);
    try {
      call.backward(context, to);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Tensor dgain(DType::kFloat32, {kH}), again(DType::kFloat32, {kH}),
      wrong(DType::kFloat32, {kH, 1});
  Tensor doubles(DType::kFloat64, {kH}), halves(DType::kFloat16, {kH});
  const std::vector<std::int32_t> integers(4);
  const Captured stranger(ConstView(call.gain), "stranger"),
      document(ConstView(integers), "document");
  const CapturedGradient good{call.captured[0], dgain}, second{call.captured[0], again};
  EXPECT_EQ(message(good), "");
  EXPECT_EQ(message(good, &second),
            "attention_backward: input_gradients.captured of gain is requested twice");
  EXPECT_EQ(message({call.captured[0], View()}),
            "attention_backward: input_gradients.captured of gain has no buffer");
  EXPECT_EQ(
      message({stranger, dgain}),
      "attention_backward: input_gradients.captured of stranger is of an array that no score in "
      "mods reads");
  EXPECT_EQ(
      message({document, dgain}),
      "attention_backward: input_gradients.captured of document is of an array of int32, which "
      "has no gradient");
  EXPECT_NE(message({call.captured[0], wrong}).find("must have the shape of gain, [4]"),
            std::string::npos);
  EXPECT_NE(
      message({call.captured[0], halves}).find("input_gradients.captured of gain must be float32"),
      std::string::npos);
  EXPECT_EQ(message({call.captured[0], doubles}), "");
  const Tensor rounded = convert(doubles, DType::kFloat32);
  EXPECT_TRUE(std::ranges::equal(rounded.values<float>(), dgain.values<float>()));
  EXPECT_NE(message({call.captured[0], call.gain}).find("must not share memory with"),
            std::string::npos);
}

}  // namespace
}  // namespace qkv::test
