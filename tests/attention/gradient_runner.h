// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_GRADIENT_RUNNER_H_
#define QKV_TESTS_ATTENTION_GRADIENT_RUNNER_H_

#include <array>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/support/compare.h"

// Gradients of one path as tensors, for bitwise comparisons.
namespace qkv::test {

// Absent if nothing was requested, or there is nothing to request.
struct GradientTensors {
  static constexpr auto& kNames = BackwardCall::kNames;

  Tensor q, k, v, bias, alibi, sinks, w, wq, wk, score_v, score_b, norm_q, norm_k;

  std::array<const Tensor*, kNames.size()> all() const {
    return {&q, &k, &v, &bias, &alibi, &sinks, &w, &wq, &wk, &score_v, &score_b, &norm_q, &norm_k};
  }
};

inline void expect_same(const GradientTensors& a, const GradientTensors& b,
                        const std::string& what) {
  for (std::size_t n = 0; n < a.all().size(); ++n) {
    if (!a.all()[n]->given() && !b.all()[n]->given()) continue;
    EXPECT_TRUE(same_bits(*a.all()[n], *b.all()[n]))
        << "d" << GradientTensors::kNames[n] << ", " << what;
  }
}

// One setting of a test: a path, a score that it supports, and a dtype.
struct GradientWalk {
  std::string path;
  ScoreKind kind;
  DType dtype;

  // The score's parameters for queries and keys of this width; units on both sides of a chunk, and
  // some of the exponentials beyond what is stored whole.
  SeededScore score(Index H, Index width) const {
    return SeededScore(kind, {.H = H, .Dq = width, .Dk = width, .U = 33, .projected = 10}, dtype);
  }
};

// Forward and backward on one path, with this score unless the options give one.
class GradientRunner {
 public:
  GradientRunner(const GradientWalk& walk, Score score, Executor executor = {})
      : path_(walk.path), score_(std::move(score)), context_(std::move(executor)) {
    context_.force_path(path_);
  }

  GradientTensors operator()(const Inputs& inputs, Options options,
                             const OutputGradients& sources) {
    if (std::holds_alternative<ScaledDot>(options.score)) options.score = score_;
    BackwardCall call{.inputs = inputs, .options = options, .sources = sources, .write = write};
    for (std::size_t n = 0; n < GradientTensors::kNames.size(); ++n) {
      const std::string name = GradientTensors::kNames[n];
      const bool there = BackwardCall::source_of(name, inputs, options).given();
      if (there && (asked >> n & 1) != 0) call.ask(name, layout);
    }
    const SavedTensors saved(call, path_);
    Gradients gradients(call);
    if (write == Write::kAccumulate) gradients.fill(1);
    attention_backward(inputs, options, saved.views(), sources, gradients.views(), context_);
    const auto tensor = [&](const char* name) {
      const auto at = gradients.arrays().find(name);
      if (at == gradients.arrays().end()) return Tensor();
      EXPECT_TRUE(at->second.intact()) << name;
      return contiguous(at->second.view());
    };
    return {tensor("q"),       tensor("k"),      tensor("v"),     tensor("bias"), tensor("alibi"),
            tensor("sinks"),   tensor("w"),      tensor("wq"),    tensor("wk"),   tensor("score_v"),
            tensor("score_b"), tensor("norm_q"), tensor("norm_k")};
  }

  // Whether any of the requested gradients exists.
  bool asks_any(const Inputs& inputs, Options options) const {
    options.score = score_;
    for (std::size_t n = 0; n < GradientTensors::kNames.size(); ++n) {
      const ConstView source = BackwardCall::source_of(GradientTensors::kNames[n], inputs, options);
      if (source.given() && (asked >> n & 1) != 0) return true;
    }
    return false;
  }

  int asked = ~0;  // bit n: the gradient kNames[n], where the call has it
  Layout layout = Layout::kContiguous;
  Write write = Write::kOverwrite;  // added to 1 in every element

 private:
  std::string path_;
  Score score_;
  Context context_;
};

// Calls test(walk) for every path with a backward pass and every score that it supports, for
// float32 and, unless the run is brief, float64; once where that is enough: for the reference,
// whose loops are the same for every score, and for float64 after the dot product. A brief run has
// one path for the other scores. avx512bf16, and the reference that has its products, only for the
// dot products of bfloat16.
template <class F>
void for_each_backward_path(const F& test) {
  for (const ScoreKind kind : kScoreKinds) {
    const bool first = kind == ScoreKind::kDot;
    const std::vector<std::string> paths = first ? all_backward_paths() : fast_backward_paths(kind);
    for (const std::string& path : paths) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
        const bool slow = is_brief() || path == kReferencePath;
        const bool again = !first && path != paths.front();
        if (dtype == DType::kFloat64 && (slow || again)) continue;
        if (is_brief() && again) continue;
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
        test(GradientWalk{path, kind, dtype});
      }
    }
  }
  for (const std::string& path : fast_paths(ScoreKind::kDot, DType::kBFloat16)) {
    if (!is_of_pairs(path)) continue;
    for (const std::string& of_pairs : {path, std::string(kPairedReferencePath)}) {
      if (is_brief() && of_pairs != path) continue;
      SCOPED_TRACE(of_pairs + ", bfloat16");
      test(GradientWalk{of_pairs, ScoreKind::kDot, DType::kBFloat16});
    }
  }
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_GRADIENT_RUNNER_H_
