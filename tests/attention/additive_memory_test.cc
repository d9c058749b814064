// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/additive_memory.h>
#include <qkv/expression.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

// The results of an AdditiveMemory, which projects its keys once, are bit-identical with those of
// attention() and attention_backward(). Only the sums of dk and dWk over steps differ, by rounding.
namespace qkv::test {
namespace {

constexpr Index kHeads = 4;
constexpr Index kKeys = 300;

// A source sequence with its additive score, and the seeded queries and dout of each step.
struct Source {
  explicit Source(DType d)
      : dtype(d),
        k(normal({2, 2, kKeys, 9}, 1, d)),
        v(normal({2, 2, kKeys, 5}, 2, d)),
        seeded(ScoreKind::kAdditive, {.H = kHeads, .Dq = 7, .Dk = 9, .U = 33, .projected = 8}, d) {}

  Additive score() const { return std::get<Additive>(seeded.score()); }
  Tensor queries(Index Tq, std::uint64_t step) const {
    return normal({2, kHeads, Tq, 7}, 10 + step, dtype);
  }
  Tensor dout(Index Tq, std::uint64_t step) const {
    return normal({2, kHeads, Tq, 5}, 20 + step, dtype);
  }

  DType dtype;
  Tensor k, v;
  SeededScore seeded;
};

// The number of queries of each step; few on the reference, which is slow.
std::vector<Index> steps_on(const std::string& path) {
  if (path == kReferencePath) return {1, 3};
  return {1, 1, 7, 130, 1};
}

// The results of a step.
struct Step {
  Tensor out, lse, row_max, entropy, column_sums, pooled, weights;
};

// The forward pass: qkv::attention() or AdditiveMemory::attention().
using Attention = std::function<void(const Inputs&, const Options&, const Outputs&)>;

Step run_step(const Attention& attention, const Source& x, const Tensor& q,
              const Options& options) {
  const DType sums = accumulator_of(x.dtype);
  const Index Tq = q.size(2);
  Step s{Tensor(x.dtype, {2, kHeads, Tq, 5}), Tensor(sums, {2, kHeads, Tq}),
         Tensor(sums, {2, kHeads, Tq}),       Tensor(sums, {2, kHeads, Tq}),
         Tensor(sums, {2, kHeads, kKeys}),    Tensor(sums, {2, kHeads, 2, 3}),
         Tensor(sums, {2, kHeads, Tq, kKeys})};
  attention({q, x.k, x.v}, options,
            {.out = s.out,
             .lse = s.lse,
             .row_max = s.row_max,
             .entropy = s.entropy,
             .column_sums = s.column_sums,
             .pooled = s.pooled,
             .weights = View(s.weights)});
  return s;
}

void expect_same_step(const Step& a, const Step& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.entropy, b.entropy)) << what;
  EXPECT_TRUE(same_bits(a.column_sums, b.column_sums)) << what;
  EXPECT_TRUE(same_bits(a.pooled, b.pooled)) << what;
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(same_bits(a.row_max, b.row_max)) << what;
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << what;
}

template <class F>
void for_each_memory(const F& test) {
  for (const std::string& path : all_backward_paths(ScoreKind::kAdditive)) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      if (is_brief() && (dtype != DType::kFloat32 || path == kReferencePath)) continue;
      SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
      test(path, dtype);
    }
  }
}

TEST(AdditiveMemory, AStepIsAttentionOnEveryPath) {
  for_each_memory([](const std::string& path, DType d) {
    const Source x(d);
    Context context = context_on(path, 2);
    AdditiveMemory memory(x.k, x.score(), context);
    EXPECT_EQ(memory.path(), path);
    const Tensor bias = normal({kHeads, 1, kKeys}, 3, d);
    const Tensor sinks = normal(Dims(kHeads), 4, d);
    const std::vector<Index> lengths{kKeys, 200};
    const std::vector<Options> all{
        {},
        {.scale = 0.5, .softcap = 4, .bias = bias, .sinks = sinks},
        {.masks = {Causal{}, KeyLengths{lengths}}},
        {.mods = {score_mod([](auto s, At at) { return s - 0.01F * (at.j % 5); })},
         .diagonal = Offset{150},
         .masks = {Window{100, 20}},
         .dropout = {0.3, 7}}};
    std::uint64_t step = 0;
    for (const Index Tq : steps_on(path)) {
      const Tensor q = x.queries(Tq, ++step);
      Options options = all[step % all.size()];
      options.score = x.score();
      const Step want = run_step([&](const Inputs& in, const Options& o,
                                     const Outputs& to) { attention(in, o, to, context); },
                                 x, q, options);
      const Step got = run_step([&](const Inputs& in, const Options& o,
                                    const Outputs& to) { memory.attention(in, o, to); },
                                x, q, options);
      expect_same_step(want, got, "step " + std::to_string(step));
    }
  });
}

TEST(AdditiveMemory, GradientsOfCapturedArraysAreThoseOfAttentionOnEveryPath) {
  for_each_memory([](const std::string& path, DType d) {
    const Source x(d);
    Context context = context_on(path, 2);
    AdditiveMemory memory(x.k, x.score(), context);
    constexpr Index kQueries = 5;
    const Tensor table = normal({kHeads, kQueries + kKeys - 1}, 3, d);
    const Symbols at;
    const Captured of(table, "table");
    const Tensor q = x.queries(kQueries, 1), dout = x.dout(kQueries, 1);
    const Inputs inputs{q, x.k, x.v};
    const Options options{.score = x.score(),
                          .mods = {score_mod(at.s + of(at.h, at.j - at.i + (kQueries - 1)))},
                          .masks = {mask_mod(at.j < at.Tk - 40 * at.i)}};
    Tensor out(d, dout.shape()), lse(accumulator_of(d), {2, kHeads, kQueries});
    attention(inputs, options, {.out = out, .lse = lse}, context);
    Tensor want(d, table.shape()), got(d, table.shape());
    attention_backward(inputs, options, {out, lse}, {.out = dout}, {.captured = {{of, want}}},
                       context);
    memory.attention_backward(inputs, options, {out, lse}, {.out = dout},
                              {.captured = {{of, got}}});
    EXPECT_TRUE(same_bits(got, want));
    const std::vector<double> values = values_of(want);
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](double one) { return one != 0; }));
  });
}

TEST(AdditiveMemory, KeysAreNotReadAgainOnEveryPath) {
  for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
    const Source x(DType::kFloat32);
    Context context = context_on(path);
    AdditiveMemory memory(x.k, x.score(), context);
    const Tensor q = x.queries(3, 1);
    const auto step = [&] {
      return run_step([&](const Inputs& in, const Options& o,
                          const Outputs& to) { memory.attention(in, o, to); },
                      x, q, {.score = x.score()});
    };
    const Step want = step();
    // NaN in k and wk shows in the next step if it reads them.
    for (const Tensor* t : {&x.k, &x.seeded.wk}) {
      for (Index n = 0; n < t->element_count(); ++n) {
        core::store(DType::kFloat32, const_cast<void*>(t->view().data()), n, std::nan(""));
      }
    }
    expect_same_step(want, step(), path);
  }
}

// ---- gradients ------------------------------------------------------------------------------

// The gradients that a step writes itself; those of k and wk are summed over the steps.
constexpr const char* kOfQueries[] = {"q", "v", "wq", "score_v", "score_b"};

BackwardCall call_of(const Source& x, const Tensor& q, const Tensor& dout) {
  BackwardCall call{.inputs = {q, x.k, x.v},
                    .options = {.score = x.score(), .masks = {Window{250, -1}}},
                    .sources = {.out = dout}};
  return call;
}

// dk and dWk, summed over all steps.
struct KeyGradients {
  explicit KeyGradients(const Source& x)
      : k(x.dtype, x.k.shape()), wk(x.dtype, x.seeded.wk.shape()) {}
  Tensor k, wk;
};

void expect_close(const KeyGradients& got, const KeyGradients& want, double eps,
                  const std::string& what) {
  for (const auto of : {&KeyGradients::k, &KeyGradients::wk}) {
    const std::vector<double> truth = values_of(want.*of);
    double largest = 0;
    for (double x : truth) largest = std::max(largest, std::fabs(x));
    EXPECT_TRUE(compare(what, got.*of, truth, {0, eps * largest}, ""));
  }
}

TEST(AdditiveMemory, GradientsOfStepsAddUpOnEveryPath) {
  for_each_memory([](const std::string& path, DType d) {
    if (d == DType::kBFloat16) return;  // attention_backward() rounds dk and dWk at every step
    const Source x(d);
    Context context = context_on(path, 2);
    AdditiveMemory memory(x.k, x.score(), context);
    const double eps = d == DType::kFloat64 ? 1e-14 : 4e-6;
    for (int round = 0; round < 2; ++round) {  // the second round starts from zero
      KeyGradients want(x);
      std::uint64_t step = 0;
      for (const Index Tq : steps_on(path)) {
        const Tensor q = x.queries(Tq, ++step);
        const Tensor dout = x.dout(Tq, step);
        BackwardCall call = call_of(x, q, dout);
        const SavedTensors saved(call, path);
        for (const char* name : kOfQueries) call.ask(name, Layout::kContiguous);
        const Gradients alone(call);
        const Gradients got(call);
        attention_backward(call.inputs, call.options, saved.views(), call.sources, alone.views(),
                           context);
        memory.attention_backward(call.inputs, call.options, saved.views(), call.sources,
                                  got.views());
        for (const char* name : kOfQueries) {
          EXPECT_TRUE(same_bits(alone.arrays().at(name).view(), got.arrays().at(name).view()))
              << "d" << name << ", step " << step;
        }
        attention_backward(
            call.inputs, call.options, saved.views(), call.sources,
            {.k = want.k, .score = AdditiveGradient{.wk = want.wk}, .write = Write::kAccumulate},
            context);
      }
      KeyGradients sum(x);
      memory.key_gradients(sum.k, sum.wk);
      expect_close(sum, want, eps, "round " + std::to_string(round));
    }
    // No step has run since the sums were read, which set them to 0.
    KeyGradients none(x);
    memory.key_gradients(none.k, none.wk, Write::kOverwrite);
    for (const Tensor* t : {&none.k, &none.wk}) {
      for (double value : values_of(*t)) ASSERT_EQ(value, 0);
    }
  });
}

// A step that requests no gradients itself still adds to the sums of dk and dWk. Each sum may be
// requested alone, in any memory layout, and accumulated.
TEST(AdditiveMemory, KeyGradientsMayBeRequestedInManyWaysOnEveryPath) {
  for (const std::string& path : all_backward_paths(ScoreKind::kAdditive)) {
    SCOPED_TRACE(path);
    const Source x(DType::kFloat32);
    const auto sums = [&](int threads, const auto& deliver) {
      Context own{Executor::threads(threads)};
      own.force_path(path);
      AdditiveMemory memory(x.k, x.score(), own);
      for (std::uint64_t step = 1; step < 4; ++step) {
        const Tensor q = x.queries(1, step);
        const Tensor dout = x.dout(1, step);
        const BackwardCall call = call_of(x, q, dout);
        const SavedTensors saved(call, path);
        memory.attention_backward(call.inputs, call.options, saved.views(), call.sources, {});
      }
      deliver(memory);
    };
    KeyGradients want(x);
    sums(1, [&](AdditiveMemory& memory) { memory.key_gradients(want.k, want.wk); });
    KeyGradients apart(x);
    sums(3, [&](AdditiveMemory& memory) { memory.key_gradients(apart.k, {}); });
    sums(2, [&](AdditiveMemory& memory) { memory.key_gradients({}, apart.wk); });
    EXPECT_TRUE(same_bits(want.k, apart.k));
    EXPECT_TRUE(same_bits(want.wk, apart.wk));
    for (const Layout layout : kOwnLayouts) {
      Guarded dk(x.dtype, x.k.shape(), layout);
      Guarded dwk(x.dtype, x.seeded.wk.shape(), layout);
      const auto plus_half = [](const Tensor& t) {
        std::vector<double> values = values_of(t);
        for (double& y : values) y = static_cast<double>(static_cast<float>(y) + 0.5F);
        return values;
      };
      for (Guarded* to : {&dk, &dwk}) {
        to->fill(std::vector<double>(static_cast<std::size_t>(to->view().element_count()), 0.5));
      }
      sums(1, [&](AdditiveMemory& memory) {
        memory.key_gradients(dk.view(), dwk.view(), Write::kAccumulate);
      });
      EXPECT_TRUE(compare("dk", dk.view(), plus_half(want.k), {}, name_of(layout)));
      EXPECT_TRUE(compare("dwk", dwk.view(), plus_half(want.wk), {}, name_of(layout)));
      EXPECT_TRUE(dk.intact() && dwk.intact());
    }
  }
}

TEST(AdditiveMemory, AStepWithoutQueriesChangesNothing) {
  const Source x(DType::kFloat32);
  Context context;
  AdditiveMemory memory(x.k, x.score(), context);
  const Tensor q(x.dtype, {2, kHeads, 0, 7});
  const Tensor dout(x.dtype, {2, kHeads, 0, 5});
  const Tensor lse(x.dtype, {2, kHeads, 0});
  Tensor out(x.dtype, {2, kHeads, 0, 5});
  const Inputs inputs{q, x.k, x.v};
  const Options options{.score = x.score()};
  memory.attention(inputs, options, {.out = out});
  Tensor dv = normal(x.v.shape(), 3);
  memory.attention_backward(inputs, options, {out, lse}, {.out = dout}, {.v = dv});
  KeyGradients sum(x);
  sum.k = normal(x.k.shape(), 4);
  sum.wk = normal(x.seeded.wk.shape(), 5);
  memory.key_gradients(sum.k, sum.wk);
  for (const Tensor* t : {&dv, &sum.k, &sum.wk}) {
    for (double value : values_of(*t)) ASSERT_EQ(value, 0);
  }
}

// Without keys every result is 0, and lse is -inf.
TEST(AdditiveMemory, MayHaveNoKeysOnEveryPath) {
  for (const std::string& path : all_paths(ScoreKind::kAdditive)) {
    SCOPED_TRACE(path);
    Source x(DType::kFloat32);
    x.k = Tensor(x.dtype, {2, 2, 0, 9});
    x.v = Tensor(x.dtype, {2, 2, 0, 5});
    Context context = context_on(path);
    AdditiveMemory memory(x.k, x.score(), context);
    const Tensor q = x.queries(3, 0), dout = x.dout(3, 0);
    Tensor out = x.dout(3, 1), lse(x.dtype, {2, kHeads, 3}), dq = x.queries(3, 1);
    const Options options{.score = x.score()};
    memory.attention({q, x.k, x.v}, options, {.out = out, .lse = lse});
    memory.attention_backward({q, x.k, x.v}, options, {out, lse}, {.out = dout}, {.q = dq});
    Tensor dk(x.dtype, x.k.shape()), dwk = contiguous(x.score().wk);
    memory.key_gradients(dk, dwk);
    for (const Tensor* zeros : {&out, &dq, &dwk}) {
      for (const float number : zeros->values<float>()) ASSERT_EQ(number, 0);
    }
    for (const float number : lse.values<float>()) EXPECT_EQ(number, -INFINITY);
  }
}

// ---- wrong calls ----------------------------------------------------------------------------

TEST(AdditiveMemory, RefusesOtherArraysAndOptions) {
  const Source x(DType::kFloat32);
  Context context;
  AdditiveMemory memory(x.k, x.score(), context);
  const Tensor q = x.queries(2, 1);
  const Tensor dout = x.dout(2, 1);
  BackwardCall call = call_of(x, q, dout);
  const SavedTensors saved(call, kReferencePath);
  Tensor out(x.dtype, {2, kHeads, 2, 5});
  const auto forward = [&](const Inputs& inputs, const Options& options) {
    return error_of([&] { memory.attention(inputs, options, {.out = out}); });
  };
  const Tensor other_k = normal(x.k.shape(), 5);
  const std::string another_k =
      "AdditiveMemory::attention: k is not the array that the memory was made with";
  EXPECT_EQ(forward({q, other_k, x.v}, call.options), another_k);
  EXPECT_EQ(forward({q, slice(x.k.view(), 2, 0, 10), x.v}, call.options), another_k);
  EXPECT_EQ(forward(call.inputs, {}),
            "AdditiveMemory::attention: options.score must be the memory's Additive");
  const Tensor other_wk = normal(x.seeded.wk.shape(), 6);
  Additive score = x.score();
  score.wk = other_wk;
  EXPECT_EQ(
      forward(call.inputs, {.score = score}),
      "AdditiveMemory::attention: additive.wk is not the array that the memory was made with");
  EXPECT_EQ(forward({slice(q.view(), 1, 0, 2), x.k, x.v}, call.options),
            "AdditiveMemory::attention: additive.wq must have the shape [U,Dq] = [any,7] or "
            "[H,U,Dq] = [2,any,7], got float32 [4,33,7]");
  const Tensor wide = convert(q, DType::kFloat64);
  EXPECT_EQ(forward({wide, x.k, x.v}, call.options),
            "TypeError: AdditiveMemory::attention: k must be float64 where q is float64, got "
            "float32 [2,2,300,9]");

  KeyGradients to(x);
  const auto backward = [&](const InputGradients& gradients) {
    return error_of([&] {
      memory.attention_backward(call.inputs, call.options, saved.views(), call.sources, gradients);
    });
  };
  const std::string in_backward = "AdditiveMemory::attention_backward: input_gradients.";
  EXPECT_EQ(backward({.k = to.k}), in_backward + "k is given, but key_gradients() computes it");
  EXPECT_EQ(backward({.score = AdditiveGradient{.wk = to.wk}}),
            in_backward + "score.wk is given, but key_gradients() computes it");
  const std::string in_sums = "AdditiveMemory::key_gradients: input_gradients";
  EXPECT_EQ(error_of([&] { memory.key_gradients(to.wk, {}); }),
            in_sums + ".k must have the shape of k, [2,2,300,9], got float32 [33,9]");
  EXPECT_EQ(error_of([&] { memory.key_gradients({}, to.k); }),
            in_sums +
                ".score.wk must have the shape of additive.wk, [33,9], got float32 "
                "[2,2,300,9]");
  EXPECT_EQ(error_of([&] { memory.key_gradients({}, {}); }),
            in_sums + " name no buffer, so there is nothing to compute");
  EXPECT_EQ(error_of([&] { AdditiveMemory(x.v, x.score(), context); }),
            "AdditiveMemory: additive.wk must have the shape [U,Dk] = [33,5] or [H,U,Dk] = "
            "[4,33,5], got float32 [33,9]");
}

}  // namespace
}  // namespace qkv::test
