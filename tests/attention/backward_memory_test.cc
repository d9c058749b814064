// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/stops.h"

// Long calls of the fast backward passes: memory does not grow with Tq x Tk, nor does work if a
// window limits it, and calls can be cancelled midway.
namespace qkv::test {
namespace {

// Three numbers for each query, lse, delta and a factor, with turns, a range and flags for each
// block of 128; two more where ALiBi or a bias of one column for all keys adds up for each query,
// and the bias itself; the workspace of a thread, a block of 128 x 128 scores and one of gradients
// among others, is below 1/2 MiB at D = E = 64. Rows whose elements do not lie side by side are
// copied: q, dout, and dq on its way.
TEST(BackwardPathMemory, IsAFewNumbersForEachQuery) {
  const std::vector<float> one{1};
  for (const std::string& path : fast_backward_paths()) {
    for (const Index T : {1, 1000, 100'000}) {
      // Arrays that repeat one element, or one row: their memory does not matter.
      const std::vector<float> row(64, 1);
      const auto repeated = [&](const Dims& shape) {
        return broadcast_to(ConstView(one.data(), Dims(1)), shape);
      };
      const ConstView rows(row.data(), {T, 64}, {0, 1});
      const Options every{.softcap = 5,
                          .mods = {score_mod([](auto s, At) { return s + 1; })},
                          .bias = repeated({T, 1}),
                          .alibi = one,
                          .masks = {Causal{}, mask_mod([](At at) { return at.i > 0; })},
                          .sinks = one,
                          .dropout = {0.5, 1}};
      for (const int threads : {1, 3}) {
        Context context{Executor::threads(threads)};
        context.force_path(path);
        const auto bytes = [&](const ConstView& x, const Options& options) {
          return static_cast<Index>(Plan({x, x, x}, options, context).backward_scratch_bytes());
        };
        const Index workers = threads * (Index{1} << 19);
        const Index blocks = (T + 127) / 128 * 32 + (Index{1} << 12);
        EXPECT_LE(bytes(rows, {}), T * 3 * 4 + blocks + workers) << path << ", T " << T;
        EXPECT_LE(bytes(rows, every), T * 6 * 4 + blocks + workers) << path << ", T " << T;
        const ConstView strided = repeated({T, 64});
        EXPECT_LE(bytes(strided, {}), T * (3 + 3 * 64) * 4 + blocks + workers)
            << path << ", T " << T;
      }
    }
  }
}

// What a plan reserves is enough for overwritten arrays in C order: calls of every kind take no
// more.
TEST(BackwardPathMemory, APlanReservesWhatItsCallsTake) {
  for (std::uint64_t n = 0; n < at_scale<std::uint64_t>(100, 8); ++n) {
    const RandomBackward random(4, n);
    BackwardCall call = random.call();
    if (call.sources.weights.rows.given()) continue;
    std::vector<Tensor> plain;
    plain.reserve(2);
    for (ConstView* x : {&call.sources.out, &call.sources.weights.matrix}) {
      if (x->given()) *x = plain.emplace_back(contiguous(*x));
    }
    call.write = Write::kOverwrite;
    for (auto& [name, asked] : call.asked) asked.layout = Layout::kContiguous;
    for (const std::string& path : all_backward_paths(random.forward().score())) {
      if (!takes_backward(path, call.inputs, call.options)) continue;
      const SavedTensors saved(call, path);
      const Gradients gradients(call);
      Context context;
      context.force_path(path);
      Plan plan(call.inputs, call.options, context);
      const std::size_t held = context.scratch_bytes();
      plan.backward(call.inputs, saved.views(), call.sources, gradients.views());
      EXPECT_EQ(context.scratch_bytes(), held) << path << ", " << n << ": " << random.describe();
    }
  }
}

// dq, dk and dv of a call [1,H,T,C] in float32, in plain arrays.
struct Gradients3 {
  Tensor q, k, v;
};
Gradients3 gradients_of(Context& context, const Inputs& inputs, const Options& options,
                        const ConstView& dout) {
  const auto like = [](const ConstView& x) { return Tensor(DType::kFloat32, x.shape()); };
  Tensor out = like(dout);
  Tensor lse(DType::kFloat32, result_shapes(inputs).rows);
  attention(inputs, options, {.out = out, .lse = lse}, context);
  Gradients3 g{like(inputs.q), like(inputs.k), like(inputs.v)};
  attention_backward(inputs, options, {out, lse}, {.out = dout}, {.q = g.q, .k = g.k, .v = g.v},
                     context);
  return g;
}

// Between -1 and 1; faster than normal().
Tensor uniform(const Dims& shape, std::uint64_t seed) {
  Tensor x(DType::kFloat32, shape);
  Random random(seed);
  for (float& y : x.values<float>()) {
    y = static_cast<float>(std::ldexp(static_cast<double>(random()), -63) - 1);
  }
  return x;
}

// Under a window a long call is many short ones: a piece of it has the same bits if it begins with
// a chunk of keys and the window reaches no edge.
TEST(BackwardPathMemory, ALongCallWithAWindowIsManyShortOnes) {
  const Index T = at_scale(100'000, 8'000);
  const Index from = T / 2 / 512 * 512;
  const Tensor q = uniform({1, 1, T, 64}, 1);
  const Tensor k = uniform({1, 1, T, 64}, 2);
  const Tensor v = uniform({1, 1, T, 64}, 3);
  const Tensor dout = uniform({1, 1, T, 64}, 4);
  const Options options{.masks = {Window{64, 40}}};
  const auto piece = [](const Tensor& x, Index begin, Index end) {
    return slice(x.view(), 2, begin, end);
  };
  for (const std::string& path : fast_backward_paths()) {
    Context context{Executor::threads(2)};
    context.force_path(path);
    const Gradients3 all = gradients_of(context, {q, k, v}, options, dout);
    const auto cut = [&](const Tensor& x) { return piece(x, from, from + 1024); };
    const Gradients3 some = gradients_of(context, {cut(q), cut(k), cut(v)}, options, cut(dout));
    const auto same = [&](const Tensor& whole, const Tensor& part) {
      return same_bits(piece(whole, from + 256, from + 768), piece(part, 256, 768));
    };
    EXPECT_TRUE(same(all.q, some.q)) << path;
    EXPECT_TRUE(same(all.k, some.k)) << path;
    EXPECT_TRUE(same(all.v, some.v)) << path;
  }
}

// ---- ends before the end --------------------------------------------------------------------

// Whichever array is watched, the call stops within a few more rows: there are 16 in a page.
TEST(BackwardPathMemory, AStopFlagEndsALongCall) {
  const Dims shape{1, 1, 2048, 64};
  TouchedArray q(DType::kFloat32, shape);
  TouchedArray k(DType::kFloat32, shape);
  TouchedArray v(DType::kFloat32, shape);
  TouchedArray out(DType::kFloat32, shape);
  TouchedArray dout(DType::kFloat32, shape);
  TouchedArray dq(DType::kFloat32, shape);
  const Tensor lse(DType::kFloat32, {1, 1, 2048});
  Tensor dk(DType::kFloat32, shape);
  Tensor dv(DType::kFloat32, shape);
  for (const std::string& path : fast_backward_paths()) {
    for (const int threads : {1, 2}) {
      for (TouchedArray* array : {&q, &k, &v, &out, &dout, &dq}) {
        Context context{Executor::threads(threads)};
        context.force_path(path);
        const auto call = [&](Context& stopped) {
          attention_backward({q, k, v}, {}, {out, lse}, {.out = dout}, {.q = dq, .k = dk, .v = dv},
                             stopped);
        };
        EXPECT_EQ(cancelled_midway(*array, 10 * threads, call, std::move(context)),
                  Cancelled("attention_backward").what())
            << path << ", " << threads << " threads";
      }
    }
  }
}

// A task of the sweep takes some keys and all queries: the flag is set in the midst of them, by a
// function that is asked for each pair, and from then on may be asked for a few blocks more.
TEST(BackwardPathMemory, AStopFlagEndsALongTask) {
  constexpr Index kTq = 8192;
  constexpr Index kTk = 128;
  const Tensor q = uniform({1, 1, kTq, 8}, 1);
  const Tensor k = uniform({1, 1, kTk, 8}, 2);
  for (const std::string& path : fast_backward_paths()) {
    std::atomic<bool> stop{false};
    std::atomic<bool> armed{false};
    std::atomic<Index> asked_after{0};
    const Options options{.mods = {score_mod([&](auto s, At at) {
                            if constexpr (!std::is_floating_point_v<decltype(s)>) {
                              if (at.i == kTq / 2 && at.j == 5 && armed) stop = true;
                            }
                            if (stop) ++asked_after;
                            return s * 0.5F;
                          })}};
    Context context{Executor::threads(2)};
    context.force_path(path);
    context.set_stop_flag(&stop);
    armed = true;
    EXPECT_THROW((void)gradients_of(context, {q, k, k}, options, q), Cancelled) << path;
    EXPECT_GT(asked_after, 0) << path;
    EXPECT_LE(asked_after, 4 * 128 * 128) << path;  // of kTq / 2 by kTk
  }
}

// A user function must not throw, but if it does, no task waits for the block it leaves, and the
// context is free again.
TEST(BackwardPathMemory, AFunctionThatThrowsEndsTheCall) {
  const Tensor q = normal({1, 2, 700, 8}, 1);
  const Tensor k = normal({1, 2, 900, 8}, 2);
  const Tensor v = normal({1, 2, 900, 8}, 3);
  const Tensor dout = normal({1, 2, 700, 8}, 4);
  for (const std::string& path : fast_backward_paths()) {
    for (const int threads : {1, 2, 3}) {
      for (const auto& [row, column] :
           std::initializer_list<std::pair<int, int>>{{0, 0}, {130, 5}, {300, 500}, {699, 899}}) {
        auto armed = std::make_shared<std::atomic<bool>>(false);
        // Only the backward pass asks for derivatives.
        const Options options{.mods = {score_mod([=, i = row, j = column](auto s, At at) {
                                if constexpr (!std::is_floating_point_v<decltype(s)>) {
                                  if (at.i == i && at.j == j && at.h == 1 && *armed)
                                    throw std::runtime_error("mine");
                                }
                                return s * 0.5F;
                              })}};
        Context context{Executor::threads(threads)};
        context.force_path(path);
        const std::string what = path + ", " + std::to_string(threads) + " threads, query " +
                                 std::to_string(row) + ", key " + std::to_string(column);
        *armed = true;
        try {
          (void)gradients_of(context, {q, k, v}, options, dout);
          ADD_FAILURE() << "nothing was thrown: " << what;
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "mine") << what;
        }
        *armed = false;
        Context fresh;
        fresh.force_path(path);
        const Gradients3 want = gradients_of(fresh, {q, k, v}, options, dout);
        const Gradients3 got = gradients_of(context, {q, k, v}, options, dout);
        EXPECT_TRUE(same_bits(want.q, got.q)) << what;
        EXPECT_TRUE(same_bits(want.k, got.k)) << what;
        EXPECT_TRUE(same_bits(want.v, got.v)) << what;
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
