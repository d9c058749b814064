// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_PATH_RUNNER_H_
#define QKV_TESTS_ATTENTION_PATH_RUNNER_H_

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"

// Results of a call on one path, forward and backward, for bitwise comparisons.
namespace qkv::test {

// Results by the names of Outputs; gradients by those of BackwardCall with a "d" in front.
using PathResults = std::map<std::string, Tensor>;

// Expects that all tensors of `some` are bit-identical with those of `all`.
inline void expect_contains(const PathResults& all, const PathResults& some,
                            const std::string& what) {
  for (const auto& [name, result] : some) {
    EXPECT_TRUE(same_bits(all.at(name), result)) << name << ", " << what;
  }
}
inline void expect_same(const PathResults& a, const PathResults& b, const std::string& what) {
  EXPECT_EQ(a.size(), b.size()) << what;
  expect_contains(a, b, what);
}

// One setting of a test: a path, a score that it supports, and a dtype.
struct Walk {
  std::string path;
  ScoreKind kind;
  DType dtype;

  // The score with seeded parameters, for queries and keys of this width. The additive score has
  // more units than a chunk, and some exponentials that are too large to be stored whole.
  SeededScore score(Index H, Index width) const {
    return SeededScore(kind, {.H = H, .Dq = width, .Dk = width, .U = 33, .projected = 10}, dtype);
  }
};

// Runs the forward pass on one path and, if sources are given, the backward pass, with `score`
// unless the options have another one than the default, ScaledDot.
class PathRunner {
 public:
  // Results that are requested besides out, lse and row_max.
  enum class Besides { kNothing, kColumnSums, kWeights, kEverything };

  PathRunner(const Walk& walk, Score score, Executor executor = {})
      : score_(std::move(score)), context_(std::move(executor)) {
    context_.force_path(walk.path);
  }

  // Returns out, lse, row_max, the other requested results, and gradients.
  PathResults operator()(const Inputs& inputs, Options options,
                         const OutputGradients& sources = {}) {
    if (std::holds_alternative<ScaledDot>(options.score)) options.score = score_;
    PathResults results;
    forward(inputs, options, results);
    BackwardCall call{.inputs = inputs, .options = options, .sources = sources, .write = write};
    const bool back = sources.out.given() || sources.lse.given() || sources.weights.matrix.given();
    for (std::size_t n = 0; back && n < BackwardCall::kNames.size(); ++n) {
      const std::string name = BackwardCall::kNames[n];
      const bool there = BackwardCall::source_of(name, inputs, options).given();
      if (there && (asked >> n & 1) != 0) call.ask(name, layout);
    }
    if (call.asked.empty()) return results;
    Gradients gradients(call);
    if (write == Write::kAccumulate) gradients.fill(1);
    attention_backward(inputs, options, {results.at("out"), results.at("lse")}, sources,
                       gradients.views(), context_);
    take("d", gradients.arrays(), results);
    return results;
  }

  Besides besides = Besides::kNothing;
  int asked = ~0;                       // bit n: request the gradient kNames[n] if the call has it
  Layout layout = Layout::kContiguous;  // of out, lse, row_max and gradients
  Write write = Write::kOverwrite;      // kAccumulate adds to buffers that hold 1

 private:
  static void take(const std::string& prefix, const std::map<std::string, Guarded>& from,
                   PathResults& to) {
    for (const auto& [name, array] : from) {
      EXPECT_TRUE(array.intact()) << prefix << name;
      to.emplace(prefix + name, contiguous(array.view()));
    }
  }

  void forward(const Inputs& inputs, const Options& options, PathResults& results) {
    const ResultShapes shapes = result_shapes(inputs);
    const DType sums = accumulator_of(inputs.q.dtype());
    std::map<std::string, Guarded> arrays;
    arrays.emplace("out", Guarded(inputs.q.dtype(), shapes.out, layout));
    arrays.emplace("lse", Guarded(sums, shapes.rows, layout));
    arrays.emplace("row_max", Guarded(sums, shapes.rows, layout));
    Outputs outputs{
        .out = arrays.at("out"), .lse = arrays.at("lse"), .row_max = arrays.at("row_max")};
    const auto add = [&](const char* name, const Dims& shape, DType dtype) {
      return View(results.emplace(name, Tensor(dtype, shape)).first->second);
    };
    const bool all = besides == Besides::kEverything;
    if (all || besides == Besides::kWeights) outputs.weights = add("weights", shapes.matrix, sums);
    if (all || besides == Besides::kColumnSums) {
      outputs.column_sums = add("column_sums", shapes.keys, sums);
    }
    std::vector<Index> named;
    if (inputs.q.size(-2) != 0) named = {inputs.q.size(-2) - 1, 0, inputs.q.size(-2) / 2};
    if (all) {
      const Dims& matrix = shapes.matrix;
      const auto sized = [&](Index rows, Index columns) {
        Dims shape = matrix;
        shape[matrix.rank() - 2] = rows;
        shape[matrix.rank() - 1] = columns;
        return shape;
      };
      const Index rows = matrix[matrix.rank() - 2];
      outputs.entropy = add("entropy", shapes.rows, sums);
      outputs.value_sums = add("value_sums", shapes.keys, sums);
      outputs.pooled = add("pooled", sized(6, 9), sums);
      outputs.top = {5, add("top_weights", sized(rows, 5), sums),
                     add("top_keys", sized(rows, 5), DType::kInt32)};
      outputs.dropped_weights = {
          named, add("dropped_weights",
                     sized(static_cast<Index>(named.size()), matrix[matrix.rank() - 1]), sums)};
      outputs.raw_scores = add("raw_scores", matrix, sums);
      outputs.capped_scores = add("capped_scores", matrix, sums);
      outputs.masked_scores = add("masked_scores", matrix, sums);
    }
    attention(inputs, options, outputs, context_);
    take("", arrays, results);
  }

  Score score_;
  Context context_;
};

// Calls test(walk) for every path (with kBoth: every path with a backward pass), with every score
// that it supports, and with float32 and float64. Left out are:
// - on the reference, scores other than the dot product, since its loops are equal for every score,
//   and with kBoth float64, since it is slow;
// - on all paths but the first, scores other than the dot product with float64, and in brief runs
//   also with float32;
// - in brief runs, float64 and the references with products of BF16.
// Paths with products of BF16, and the references that have these, run dot products of bfloat16 and
// nothing else.
enum class Passes { kForward, kBoth };
template <class F>
void for_each_path(Passes passes, const F& test) {
  const bool both = passes == Passes::kBoth;
  for (const ScoreKind kind : kScoreKinds) {
    const bool first = kind == ScoreKind::kDot;
    std::vector<std::string> paths = both ? fast_backward_paths(kind) : fast_paths(kind);
    if (first) paths.emplace_back(kReferencePath);
    for (const std::string& path : paths) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
        const bool slow = is_brief() || (both && path == kReferencePath);
        const bool again = !first && path != paths.front();
        if (dtype == DType::kFloat64 && (slow || again)) continue;
        if (is_brief() && again) continue;
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
        test(Walk{path, kind, dtype});
      }
    }
  }
  for (const std::string& path : bfloat16_paths()) {
    for (const std::string& of_bfloat16 : {path, std::string(reference_of(path))}) {
      if (is_brief() && of_bfloat16 != path) continue;
      SCOPED_TRACE(of_bfloat16 + ", bfloat16");
      test(Walk{of_bfloat16, ScoreKind::kDot, DType::kBFloat16});
    }
  }
}

// A call [B,H,T,.] with every gradient: its arrays, and the options that refer to them.
struct SeededCall {
  SeededCall(Index B, Index H, Index G, Index Tq, Index Tk, Index D, Index E, const Walk& walk)
      : score(walk.score(H, D)),
        q(normal({B, H, Tq, D}, 1, walk.dtype)),
        k(normal({B, G, Tk, D}, 2, walk.dtype)),
        v(normal({B, G, Tk, E}, 3, walk.dtype)),
        bias(normal({H, 1, Tk}, 4, walk.dtype)),
        slopes(normal({B, H}, 5, walk.dtype)),
        sinks(normal(Dims(H), 6, walk.dtype)),
        dout(normal({B, H, Tq, E}, 7, walk.dtype)),
        dlse(normal({B, H, Tq}, 8, accumulator_of(walk.dtype))),
        dweights(normal({B, H, 3, Tk}, 9, accumulator_of(walk.dtype))) {}

  Inputs inputs() const { return {q, k, v}; }
  Options options() const {
    return {.softcap = 20,
            .bias = bias,
            .alibi = slopes,
            .masks = {Window{500, 300}},
            .sinks = sinks,
            .dropout = {0.2, 11}};
  }
  OutputGradients sources() const {
    return {.out = dout, .lse = dlse, .weights = {rows, ConstView(dweights)}};
  }

  SeededScore score;
  Tensor q, k, v, bias, slopes, sinks, dout, dlse, dweights;
  std::vector<Index> rows{5, 0, 5};
};

// A user's parallel_for that starts a thread for each body, in reverse order.
inline void backwards_in_threads(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::thread> threads;
  for (Index n = count - 1; n >= 0; --n) threads.emplace_back([=] { body(state, n); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_PATH_RUNNER_H_
