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

// Gradients of one path as tensors, for comparisons to the bit.
namespace qkv::test {

// Absent where nothing was asked, or there is nothing to ask.
struct GradientTensors {
  static constexpr std::array kNames{"q", "k", "v", "bias", "alibi", "sinks"};

  Tensor q, k, v, bias, alibi, sinks;

  std::array<const Tensor*, 6> all() const { return {&q, &k, &v, &bias, &alibi, &sinks}; }
};

inline void expect_same(const GradientTensors& a, const GradientTensors& b,
                        const std::string& what) {
  for (std::size_t n = 0; n < a.all().size(); ++n) {
    if (!a.all()[n]->given() && !b.all()[n]->given()) continue;
    EXPECT_TRUE(same_bits(*a.all()[n], *b.all()[n]))
        << "d" << GradientTensors::kNames[n] << ", " << what;
  }
}

// Forward and backward on one path.
class GradientRunner {
 public:
  explicit GradientRunner(std::string path, Executor executor = {})
      : path_(std::move(path)), context_(std::move(executor)) {
    context_.force_path(path_);
  }

  GradientTensors operator()(const Inputs& inputs, const Options& options,
                             const OutputGradients& sources) {
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
    return {tensor("q"),    tensor("k"),     tensor("v"),
            tensor("bias"), tensor("alibi"), tensor("sinks")};
  }

  int asked = 63;  // bit n: the gradient kNames[n], where the call has it
  Layout layout = Layout::kContiguous;
  Write write = Write::kOverwrite;  // added to 1 in every element

 private:
  std::string path_;
  Context context_;
};

// Calls test(path, dtype) for every path with a backward pass and for float32 and, in fast builds
// and on fast paths, float64.
template <class F>
void for_each_backward_path(const F& test) {
  for (const std::string& path : all_backward_paths()) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      if (dtype == DType::kFloat64 && (kSlowdown > 1 || path == kReferencePath)) continue;
      SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
      test(path, dtype);
    }
  }
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_GRADIENT_RUNNER_H_
