// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/path_runner.h"
#include "tests/support/stops.h"

// Long calls, forward and backward: memory does not grow with Tq x Tk, let alone Tq x Tk x U, nor
// does work if a window limits it, and calls can be cancelled midway.
namespace qkv::test {
namespace {

constexpr Index kMiB = Index{1} << 20;

// Arrays that repeat one row, or one element, so that they take no memory.
ConstView rows(const Dims& shape) {
  static const std::vector<float> row(256, 0.01F);
  Dims strides = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) strides[axis] = axis == shape.rank() - 1 ? 1 : 0;
  return {row.data(), shape, strides};
}
ConstView repeated(const Dims& shape) { return broadcast_to(slice(rows({1}), 0, 0, 1), shape); }

// The score of a kind, with parameters of this width.
Score score_of(ScoreKind kind, Index width) {
  const ConstView matrix = rows({width, width}), vector = rows({width});
  if (kind == ScoreKind::kBilinear) return Bilinear{matrix};
  if (kind == ScoreKind::kAdditive) return Additive{matrix, matrix, vector, vector};
  if (kind == ScoreKind::kCosine) return Cosine{};
  return ScaledDot{};
}

// A bound of scratch memory in bytes, for calls of size T (see Kind).
struct Bound {
  Index block = 0;   // for each block of 128 of T
  Index thread = 0;  // for each thread
  Index rest = 0;    // once

  void expect(std::size_t bytes, Index T, Index threads) const {
    EXPECT_LE(static_cast<Index>(bytes), (T + 127) / 128 * block + threads * thread + rest);
  }
};

// A kind of calls, and the sizes T that are tried. T is the number of queries and of keys; with one
// query the number of keys; or the number of batch entries.
struct Kind {
  const char* name;
  ScoreKind score;
  Index width;
  std::vector<Index> lengths;
  std::function<Inputs(Index T)> inputs;
  std::function<Options(Index T)> options;
  std::optional<Bound> forward, backward;  // absent: not checked
};

Options every_option(const ConstView& bias, const MaskMod& mask) {
  return {.softcap = 5,
          .mods = {score_mod([](auto s, At) { return s + 1; })},
          .bias = bias,
          .masks = {mask},
          .sinks = rows({1}),
          .dropout = {0.5, 1}};
}

std::vector<Kind> kinds() {
  const auto square = [](Index width) {
    return [=](Index T) { return Inputs{rows({T, width}), rows({T, width}), rows({T, width})}; };
  };
  const auto none = [](Index) { return Options(); };
  const MaskMod later = mask_mod([](At at) { return at.i > 0; });
  static const std::uint8_t yes = 1;
  // The forward pass takes the keys packed for one block of heads (32 MiB, or one key head's),
  // three numbers per query and one per key for results besides out, and less than 3/4 MiB per
  // thread.
  const Bound dot{128 * (64 + 4) * 4, kMiB * 3 / 4, kMiB / 32};
  // The backward pass takes three numbers for each query (lse, delta and a factor), and a counter,
  // a range and flags for each block of 128; two more numbers where ALiBi or a bias of one column
  // for all keys is summed for each query, and the bias itself. The workspace of a thread, which
  // includes a block of 128 x 128 scores and one of gradients, is below 1/2 MiB at D = E = 64. Rows
  // whose elements are not contiguous are copied: q, dout, and dq before it is written.
  const auto dot_backward = [](Index numbers) {
    return Bound{128 * numbers * 4 + 32, kMiB / 2, kMiB / 256};
  };
  const std::vector<Index> any{1, 64, 1000, 2048, 16'384, 100'000};
  std::vector<Kind> all{{"plain", ScoreKind::kDot, 64, any, square(64), none, dot, dot_backward(3)},
                        {"every option", ScoreKind::kDot, 64, any, square(64),
                         [=](Index T) {
                           Options x = every_option(repeated({T, 1}), later);
                           x.masks.emplace_back(Causal{});
                           x.alibi = rows({1});
                           return x;
                         },
                         dot, dot_backward(6)},
                        {"options of T x T", ScoreKind::kDot, 64, any, square(64),
                         [=](Index T) {
                           Options x = every_option(repeated({T, T}), later);
                           x.masks.emplace_back(Window{5, 7});
                           x.masks.emplace_back(Keep{ConstView(&yes, {T, T}, {0, 0})});
                           return x;
                         },
                         dot, std::nullopt},
                        {"strided", ScoreKind::kDot, 64, any,
                         [](Index T) {
                           return Inputs{repeated({T, 64}), repeated({T, 64}), repeated({T, 64})};
                         },
                         none, dot, dot_backward(3 + 3 * 64)},
                        // A batch that shares keys takes at most four numbers for each channel of
                        // a query, and 128 bytes more for each query.
                        {"keys shared by the batch",
                         ScoreKind::kDot,
                         64,
                         {65'536},
                         [](Index T) {
                           const ConstView keys = rows({1, 1, 512, 64});
                           return Inputs{rows({T, 1, 1, 64}), keys, keys};
                         },
                         none,
                         std::nullopt,
                         Bound{128 * (4 * 64 * 4 + 128), 0, 0}},
                        // In decoding only the memory of transformed keys grows with their number.
                        {"one query",
                         ScoreKind::kAdditive,
                         64,
                         {20'000},
                         [](Index T) {
                           return Inputs{rows({1, 64}), rows({T, 64}), rows({T, 64})};
                         },
                         none,
                         Bound{128 * 64 * 4 * 4, 0, 4 * kMiB},
                         std::nullopt}};
  // A projected query or key takes 2 U numbers, its gradient U, and a flag. Besides these there are
  // the memory of dot products, the keys packed for one block of heads, parameters, and the
  // threads' workspaces.
  for (const ScoreKind kind : {ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    const Bound rows_of_units{128 * 64 * 4 * 10, 0, 8 * kMiB};
    all.push_back({"long", kind, 64, {65'536}, square(64), none, rows_of_units, rows_of_units});
    // The bound of 64 MiB is one byte for each query-key pair.
    all.push_back({"wide",
                   kind,
                   256,
                   {8192},
                   square(256),
                   none,
                   Bound{0, 0, 64 * kMiB},
                   Bound{0, 0, 64 * kMiB}});
  }
  // In a batch of T entries, projected rows and their gradients are in memory for some entries at a
  // time, in 32 MiB. The forward pass also takes a few numbers for each row.
  for (const ScoreKind kind : {ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    all.push_back({"batch",
                   kind,
                   256,
                   {8, 64, 1000},
                   [](Index T) {
                     const ConstView x = rows({T, 1, 512, 256});
                     return Inputs{x, x, x};
                   },
                   none,
                   Bound{2 * kMiB, 0, 68 * kMiB},
                   Bound{0, 4 * kMiB, 33 * kMiB}});
  }
  return all;
}

TEST(PathMemory, IsAFewNumbersForEachRow) {
  for (const Kind& kind : kinds()) {
    for (const std::string& path : fast_backward_paths(kind.score)) {
      for (const Index T : kind.lengths) {
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(std::string(kind.name) + ", T " + std::to_string(T) + ", " + path + ", " +
                       std::to_string(threads) + " threads");
          Context context = context_on(path, threads);
          Options options = kind.options(T);
          options.score = score_of(kind.score, kind.width);
          const Plan plan(kind.inputs(T), options, context);
          ASSERT_EQ(plan.path(), path);
          ASSERT_EQ(plan.backward_path(), path);
          if (kind.forward) kind.forward->expect(plan.scratch_bytes(), T, threads);
          if (kind.backward) kind.backward->expect(plan.backward_scratch_bytes(), T, threads);
        }
      }
    }
  }
}

// Once a thread's workspace has reached its maximum, twice as many rows take twice as much.
TEST(PathMemory, IsLinear) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const std::string& path : all_backward_paths(kind)) {
      SCOPED_TRACE(path);
      const auto bytes = [&](Index T) {
        Context context = context_on(path, 2);
        const ConstView x = rows({1, 2, T, 64});
        const Plan plan({x, x, x}, {.score = score_of(kind, 64), .masks = {Causal{}}}, context);
        return std::pair(plan.scratch_bytes(), plan.backward_scratch_bytes());
      };
      const auto once = bytes(16'384), twice = bytes(32'768), four = bytes(65'536);
      EXPECT_LE(four.first - twice.first, 2 * (twice.first - once.first) + 4096);
      EXPECT_LE(four.second - twice.second, 2 * (twice.second - once.second) + 4096);
    }
  }
}

// The memory that a plan reserves is enough for all results of the forward pass, and for
// overwritten gradients in C order: random calls take no more. Calls without queries are skipped:
// their plans reserve nothing, although results of keys, which are 0, may take memory.
TEST(PathMemory, APlanReservesWhatItsCallsTake) {
  for (std::uint64_t n = 0; n < at_scale<std::uint64_t>(100, 8); ++n) {
    const RandomBackward random(4, n);
    BackwardCall call = random.call();
    const RandomCall& drawn = random.forward();
    if (call.sources.weights.rows.given() || drawn.B * drawn.H * drawn.Tq == 0) continue;
    std::vector<Tensor> plain;
    plain.reserve(2);
    for (ConstView* x : {&call.sources.out, &call.sources.weights.matrix}) {
      if (x->given()) *x = plain.emplace_back(contiguous(*x));
    }
    call.write = Write::kOverwrite;
    for (auto& [name, asked] : call.asked) asked.layout = Layout::kContiguous;
    const Results results(drawn, 0);
    for (const std::string& path : all_backward_paths(drawn.score())) {
      if (!takes_backward(path, call.inputs, call.options)) continue;
      const SavedTensors saved(call, path);
      const Gradients gradients(call);
      Context context = context_on(path), forward = context_on(path), backward = context_on(path);
      Plan plan(call.inputs, call.options, context);
      const std::size_t held = context.scratch_bytes();
      plan.run(call.inputs, results.outputs());
      plan.backward(call.inputs, saved.views(), call.sources, gradients.views());
      EXPECT_EQ(context.scratch_bytes(), held) << path << ", " << n << ": " << random.describe();
      attention(call.inputs, call.options, results.outputs(), forward);
      EXPECT_LE(forward.scratch_bytes(), plan.scratch_bytes())
          << path << ", " << n << ": " << random.describe();
      attention_backward(call.inputs, call.options, saved.views(), call.sources, gradients.views(),
                         backward);
      EXPECT_LE(backward.scratch_bytes(), plan.backward_scratch_bytes())
          << path << ", " << n << ": " << random.describe();
    }
  }
}

// Computes out and gradients of a call in float32, in plain arrays: faster than PathRunner.
PathResults results_of(Context& context, const Inputs& inputs, const Options& options,
                       const ConstView& dout) {
  const auto like = [](const ConstView& x) { return Tensor(DType::kFloat32, x.shape()); };
  PathResults x;
  x["out"] = like(dout), x["lse"] = Tensor(DType::kFloat32, result_shapes(inputs).rows);
  x["dq"] = like(inputs.q), x["dk"] = like(inputs.k), x["dv"] = like(inputs.v);
  attention(inputs, options, {.out = x["out"], .lse = x["lse"]}, context);
  attention_backward(inputs, options, {x["out"], x["lse"]}, {.out = dout},
                     {.q = x["dq"], .k = x["dk"], .v = x["dv"]}, context);
  return x;
}

// Numbers between -1 and 1; faster than normal().
Tensor uniform(const Dims& shape, std::uint64_t seed) {
  Tensor x(DType::kFloat32, shape);
  Random random(seed);
  for (float& y : x.values<float>()) {
    y = static_cast<float>(std::ldexp(static_cast<double>(random()), -63) - 1);
  }
  return x;
}

// With a window a long call equals many short ones: the inner rows of a piece, whose windows do not
// reach the piece's edges, are bit-identical if the piece begins with a chunk of keys.
TEST(PathMemory, ALongCallWithAWindowIsManyShortOnes) {
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
    Context context = context_on(path, 2);
    const PathResults all = results_of(context, {q, k, v}, options, dout);
    const auto cut = [&](const Tensor& x) { return piece(x, from, from + 1024); };
    const PathResults some = results_of(context, {cut(q), cut(k), cut(v)}, options, cut(dout));
    for (const char* name : {"out", "dq", "dk", "dv"}) {
      EXPECT_TRUE(
          same_bits(piece(all.at(name), from + 256, from + 768), piece(some.at(name), 256, 768)))
          << name << ", " << path;
    }
  }
}

// ---- calls that end early -------------------------------------------------------------------

// Whichever array is watched, the call stops within a few more rows (a page holds 16), in
// projections (of q and k, and back to dq) as well as among query-key pairs (v).
TEST(PathMemory, AStopFlagEndsALongCall) {
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
  for (const ScoreKind kind : {ScoreKind::kDot, ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    const Options options{.score = score_of(kind, 64)};
    const auto forward = [&](Context& context) {
      attention({q, k, v}, options, {.out = out}, context);
    };
    const auto backward = [&](Context& context) {
      attention_backward({q, k, v}, options, {out, lse}, {.out = dout}, {.q = dq, .k = dk, .v = dv},
                         context);
    };
    for (const std::string& path : fast_backward_paths(kind)) {
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(path + ", " + std::to_string(threads) + " threads");
        const auto stop_at = [&](TouchedArray& array, const auto& call) {
          return cancelled_midway(array, 10 * threads, call, context_on(path, threads));
        };
        for (TouchedArray* array : {&q, &k, &v, &out}) {
          EXPECT_EQ(stop_at(*array, forward), Cancelled("attention").what());
        }
        for (TouchedArray* array : {&q, &k, &v, &out, &dout, &dq}) {
          EXPECT_EQ(stop_at(*array, backward), Cancelled("attention_backward").what());
        }
      }
    }
  }
}

// A task of the backward pass takes a block of keys and all queries. In the middle of the queries a
// score function sets the flag; it may then be evaluated for a few blocks of pairs more.
TEST(PathMemory, AStopFlagEndsALongTask) {
  constexpr Index kTq = 8192;
  constexpr Index kTk = 128;
  const Tensor q = uniform({1, 1, kTq, 8}, 1);
  const Tensor k = uniform({1, 1, kTk, 8}, 2);
  for (const std::string& path : fast_backward_paths()) {
    std::atomic<bool> stop{false};
    std::atomic<bool> armed{false};
    std::atomic<Index> calls_after_stop{0};
    const Options options{.mods = {score_mod([&](auto s, At at) {
                            // Only the backward pass evaluates derivatives.
                            if constexpr (!std::is_floating_point_v<decltype(s)>) {
                              if (at.i == kTq / 2 && at.j == 5 && armed) stop = true;
                            }
                            if (stop) ++calls_after_stop;
                            return s * 0.5F;
                          })}};
    Context context = context_on(path, 2);
    context.set_stop_flag(&stop);
    armed = true;
    EXPECT_THROW((void)results_of(context, {q, k, k}, options, q), Cancelled) << path;
    EXPECT_GT(calls_after_stop, 0) << path;
    EXPECT_LE(calls_after_stop, 4 * 128 * 128) << path;  // of kTq / 2 x kTk pairs
  }
}

// A user function must not throw. If it does, no task waits for the block that it left unfinished,
// and the context can be used again.
TEST(PathMemory, AFunctionThatThrowsEndsTheCall) {
  const Tensor q = normal({1, 2, 700, 8}, 1);
  const Tensor k = normal({1, 2, 900, 8}, 2);
  const Tensor v = normal({1, 2, 900, 8}, 3);
  const Tensor dout = normal({1, 2, 700, 8}, 4);
  for (const std::string& path : fast_backward_paths()) {
    for (const int threads : {1, 2, 3}) {
      for (const auto& [row, column] :
           std::initializer_list<std::pair<int, int>>{{0, 0}, {130, 5}, {300, 500}, {699, 899}}) {
        auto armed = std::make_shared<std::atomic<bool>>(false);
        // Only the backward pass evaluates derivatives.
        const Options options{.mods = {score_mod([=, i = row, j = column](auto s, At at) {
                                if constexpr (!std::is_floating_point_v<decltype(s)>) {
                                  if (at.i == i && at.j == j && at.h == 1 && *armed)
                                    throw std::runtime_error("mine");
                                }
                                return s * 0.5F;
                              })}};
        Context context = context_on(path, threads);
        const std::string what = path + ", " + std::to_string(threads) + " threads, query " +
                                 std::to_string(row) + ", key " + std::to_string(column);
        *armed = true;
        try {
          (void)results_of(context, {q, k, v}, options, dout);
          ADD_FAILURE() << "nothing was thrown: " << what;
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "mine") << what;
        }
        *armed = false;
        Context fresh = context_on(path);
        expect_same(results_of(fresh, {q, k, v}, options, dout),
                    results_of(context, {q, k, v}, options, dout), what);
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
