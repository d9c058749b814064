// SPDX-License-Identifier: Apache-2.0
#include "cuda/call.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "cuda/images.h"
#include "tests/cuda/fake_calls.h"
#include "tests/support/errors.h"

// Tests calls with a fake driver (fake_driver.cc). The kMemory bytes from address kMemory on are
// memory of device 0, those from address 2 kMemory on memory of device 2.
namespace qkv::test {
namespace {

constexpr std::uintptr_t kMemory = std::uintptr_t{1} << 60U;

View array(std::uintptr_t address, DType dtype, const Dims& shape) {
  auto* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return {data, dtype, shape, contiguous_strides(shape)};
}

class CudaCall : public testing::Test {
 protected:
  CudaCall() : driver_(path_of("devices").c_str(), 13000) { calls(); }

  static std::string calls() { return fake_calls("devices"); }

  static Inputs inputs(DType dtype, std::uintptr_t q = kMemory) {
    return {array(q, dtype, {2, 8, 300, 64}), array(kMemory + (1U << 24U), dtype, {2, 4, 500, 64}),
            array(kMemory + (2U << 24U), dtype, {2, 4, 500, 64})};
  }
  static Outputs outputs(DType dtype, std::uintptr_t lse = kMemory + (4U << 24U)) {
    return {.out = array(kMemory + (3U << 24U), dtype, {2, 8, 300, 64}),
            .lse = array(lse, DType::kFloat32, {2, 8, 300})};
  }
  std::string error(const Inputs& in, const Options& options, const Outputs& out,
                    const cuda::Stream& stream = {}) {
    return error_of([&] { cuda::run_attention(driver_, in, options, out, stream); });
  }

  cuda::Driver driver_;
};

TEST_F(CudaCall, LaunchesTheKernelThatItsOptionsNeed) {
  if (cuda::images().empty()) GTEST_SKIP() << cuda::why_no_device();
  const auto launched = [&](DType dtype, const Options& options) {
    cuda::run_attention(driver_, inputs(dtype), options, outputs(dtype), {});
    return calls();
  };
  // There are 3 blocks of 128 queries for each of 2 x 8 heads.
  const std::string plain = launched(DType::kBFloat16, {.masks = {Causal{}}});
  EXPECT_NE(plain.find("function qkv_forward_bfloat16_64\n"), std::string::npos) << plain;
  EXPECT_NE(plain.find("launch 48 1 1 128 1 1 "), std::string::npos) << plain;
  EXPECT_TRUE(plain.ends_with("pop\n")) << plain;
  const std::string every = launched(DType::kFloat16, {.softcap = 20});
  EXPECT_NE(every.find("function qkv_forward_float16_64_every\n"), std::string::npos) << every;
  EXPECT_NE(every.find("launch 48 1 1 128 1 1 "), std::string::npos) << every;
}

// A call of float32 with an additive score of 40 units. Wk has an axis of heads if `per_head`.
struct AdditiveCall {
  explicit AdditiveCall(Index queries, bool per_head = false)
      : inputs{at(0, {2, 8, queries, 64}), at(1, {2, 4, 500, 32}), at(2, {2, 4, 500, 100})},
        options{.score = Additive{at(4, {40, 64}), per_head ? at(5, {8, 40, 32}) : at(5, {40, 32}),
                                  at(6, {40})}},
        outputs{.out = at(3, {2, 8, queries, 100})} {}
  static View at(unsigned n, const Dims& shape) {
    return array(kMemory + (std::uintptr_t{n} << 40U), DType::kFloat32, shape);
  }
  Inputs inputs;
  Options options;
  Outputs outputs;
};

TEST_F(CudaCall, AllocatesProjectionsForAdditiveScores) {
  if (cuda::images().empty()) GTEST_SKIP() << cuda::why_no_device();
  const auto launched = [&](const AdditiveCall& call) {
    cuda::run_attention(driver_, call.inputs, call.options, call.outputs, {});
    return calls();
  };
  const std::string text = launched(AdditiveCall(300));
  const auto position = [&](const std::string& line) { return text.find(line + "\n"); };
  const auto position_from = [&](const std::string& line, std::size_t from) {
    return text.find(line, from);
  };
  // Each of 2 x 8 x 300 rows of q and 2 x 4 x 500 rows of k has 40 projections. A block projects 64
  // rows to 64 units.
  const std::size_t allocated = position("allocate " + std::to_string(4 * 40 * (4800 + 4000)));
  const std::size_t projected = position("function qkv_additive_project");
  const std::size_t scored = position("function qkv_additive_128");
  ASSERT_NE(allocated, std::string::npos) << text;
  ASSERT_LT(allocated, projected) << text;
  EXPECT_LT(position_from("launch 144 1 1 128 1 1 ", projected), scored) << text;
  EXPECT_LT(position_from("launch 80 1 1 128 1 1 ", scored), position("free")) << text;
  EXPECT_NE(position("free"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("pop\n")) << text;
  // With a Wk for each head, keys are projected for each query head.
  const std::string heads = launched(AdditiveCall(300, true));
  EXPECT_NE(heads.find("allocate " + std::to_string(4 * 40 * (4800 + 8000)) + "\n"),
            std::string::npos)
      << heads;
}

TEST_F(CudaCall, SaysHowManyBytesItCannotAllocate) {
  const AdditiveCall call(Index{50'000'000});
  EXPECT_THROW(cuda::run_attention(driver_, call.inputs, call.options, call.outputs, {}),
               cuda::DriverError);
  try {
    cuda::run_attention(driver_, call.inputs, call.options, call.outputs, {});
  } catch (const cuda::DriverError& error) {
    EXPECT_STREQ(error.what(),
                 "allocating 128000640000 bytes for a call: "
                 "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  }
  EXPECT_EQ(calls().find("launch"), std::string::npos);
}

TEST_F(CudaCall, RefusesArraysOfOtherMemoryByName) {
  const DType dtype = DType::kBFloat16;
  EXPECT_EQ(error(inputs(dtype, 64), {}, outputs(dtype)),
            "cuda::attention: q must be in the memory of device 0, got memory of the host");
  EXPECT_EQ(error(inputs(dtype), {}, outputs(dtype, 2 * kMemory)),
            "cuda::attention: lse must be in the memory of device 0, got that of device 2");
  const Options sinks{.sinks = array(64, DType::kFloat32, {8})};
  EXPECT_EQ(error(inputs(dtype), sinks, outputs(dtype)),
            "cuda::attention: sinks must be in the memory of device 0, got memory of the host");
  EXPECT_EQ(error(inputs(dtype), {}, outputs(dtype), {.device = 2}),
            "cuda::attention: q must be in the memory of device 2, got that of device 0");
  EXPECT_EQ(calls().find("launch"), std::string::npos);
}

TEST_F(CudaCall, RefusesWhatNoKernelSupports) {
  const auto refused = [&](DType dtype, const Options& options, const Outputs& out) {
    constexpr std::string_view kStart =
        "cuda::attention: options need what no CUDA kernel supports: ";
    std::string text = error(inputs(dtype), options, out);
    EXPECT_TRUE(text.starts_with(kStart)) << text;
    text.erase(0, kStart.size());
    return text;
  };
  EXPECT_EQ(refused(DType::kFloat64, {}, {.out = outputs(DType::kFloat64).out}), "q of float64");
  Outputs entropy = outputs(DType::kFloat32);
  entropy.entropy = array(kMemory + (5U << 24U), DType::kFloat32, {2, 8, 300});
  EXPECT_EQ(refused(DType::kFloat32, {}, entropy),
            "results of float32 other than out, lse and row_max");
  const DType dtype = DType::kBFloat16;
  EXPECT_EQ(refused(dtype, {.score = Cosine{}}, outputs(dtype)),
            "input transforms (cosine and bilinear scores, QK-norm, rotary positions)");
  Outputs scores = outputs(dtype);
  scores.raw_scores = array(kMemory + (5U << 24U), DType::kFloat32, {2, 8, 300, 500});
  EXPECT_EQ(refused(dtype, {}, scores),
            "results other than out, lse, row_max, entropy, column_sums, value_sums and weights");
  const Keep keep{array(kMemory + (6U << 24U), DType::kBool, {300, 500})};
  EXPECT_EQ(refused(dtype, {.masks = {keep, keep}}, outputs(dtype)), "more than one Keep");
  const Padding padding{array(kMemory + (6U << 24U), DType::kBool, {2, 500})};
  EXPECT_EQ(refused(dtype, {.masks = {padding, padding}}, outputs(dtype)), "more than one Padding");
  const KeyLengths lengths{array(kMemory + (6U << 24U), DType::kInt32, {2})};
  EXPECT_EQ(refused(dtype, {.masks = {lengths, lengths, lengths}}, outputs(dtype)),
            "more than two KeyLengths");
  EXPECT_EQ(error({array(kMemory, dtype, {4, 300}), array(kMemory, dtype, {4, 300})}, {},
                  {.lse = array(kMemory + (1U << 24U), DType::kFloat32, {4})}),
            "cuda::attention: options need what no CUDA kernel supports: more than 256 channels");
}

TEST_F(CudaCall, RefusesAdditiveScoresThatNoKernelSupports) {
  const auto refused = [&](const AdditiveCall& call) {
    std::string text = error(call.inputs, call.options, call.outputs);
    constexpr std::string_view kStart =
        "cuda::attention: options need what no CUDA kernel supports: ";
    EXPECT_TRUE(text.starts_with(kStart)) << text;
    return text.substr(std::min(text.size(), kStart.size()));
  };
  const auto as = [](const ConstView& x, DType dtype) {
    return View(const_cast<void*>(x.data()), dtype, x.shape(), contiguous_strides(x.shape()));
  };
  AdditiveCall narrow(300);
  for (ConstView* x : {&narrow.inputs.q, &narrow.inputs.k, &narrow.inputs.v}) {
    *x = as(*x, DType::kBFloat16);
  }
  narrow.outputs.out = as(narrow.outputs.out, DType::kBFloat16);
  EXPECT_EQ(refused(narrow), "an additive score of q of bfloat16");
  AdditiveCall mixed(300);
  for (ConstView* x : {&mixed.inputs.k, &mixed.inputs.v}) *x = as(*x, DType::kBFloat16);
  EXPECT_EQ(refused(mixed), "q of float32 with k of bfloat16");
  AdditiveCall wide(300);
  wide.inputs.v = AdditiveCall::at(2, {2, 4, 500, 257});
  wide.outputs.out = AdditiveCall::at(3, {2, 8, 300, 257});
  EXPECT_EQ(refused(wide), "values of more than 256 channels");
  AdditiveCall sums(300);
  sums.outputs.entropy = AdditiveCall::at(7, {2, 8, 300});
  EXPECT_EQ(refused(sums), "results of an additive score other than out, lse and row_max");
}

// The arrays of a backward call that asks for the gradients of q, k and v.
struct BackwardArrays {
  BackwardArrays() : BackwardArrays(DType::kBFloat16) {}
  explicit BackwardArrays(DType dtype)
      : inputs{at(0, kOut, dtype), at(1, kKeys, dtype), at(2, kKeys, dtype)},
        saved{at(3, kOut, dtype), at(4, kRows, DType::kFloat32)},
        sources{.out = at(5, kOut, dtype)},
        gradients{.q = at(6, kOut, dtype), .k = at(7, kKeys, dtype), .v = at(8, kKeys, dtype)} {}

  Inputs inputs;
  Options options{};
  Saved saved;
  OutputGradients sources;
  InputGradients gradients;

  static View at(unsigned n, const Dims& shape, DType dtype = DType::kBFloat16) {
    return array(kMemory + (std::uintptr_t{n} << 24U), dtype, shape);
  }
  static inline const Dims kOut{2, 8, 300, 64};
  static inline const Dims kKeys{2, 4, 500, 64};
  static inline const Dims kRows{2, 8, 300};
};

class CudaBackward : public CudaCall {
 protected:
  void run(const BackwardArrays& x) {
    cuda::run_attention_backward(driver_, x.inputs, x.options, x.saved, x.sources, x.gradients, {});
  }
  std::string refused(const BackwardArrays& x) {
    std::string text = error_of([&] { run(x); });
    constexpr std::string_view kStart = "cuda::attention_backward: ";
    EXPECT_TRUE(text.starts_with(kStart)) << text;
    EXPECT_EQ(calls().find("launch"), std::string::npos);
    return text.substr(std::min(text.size(), kStart.size()));
  }
};

TEST_F(CudaBackward, LaunchesTheKernelsOfRequestedGradients) {
  if (cuda::images().empty()) GTEST_SKIP() << cuda::why_no_device();
  const auto launched = [&](const BackwardArrays& x) {
    run(x);
    return calls();
  };
  const BackwardArrays all;
  const std::string text = launched(all);
  const auto position = [&](const std::string& line, std::size_t from) {
    return text.find(line, from);
  };
  // Statistics take 16 bytes for each query of each head. There are 5 blocks of 64 queries for each
  // of 2 x 8 heads, and 8 blocks of 64 keys for each of 2 x 4 key heads.
  const std::size_t allocated = position("allocate " + std::to_string(16 * 4800) + "\n", 0);
  const std::size_t prepared = position("function qkv_prepare_gradients_bfloat16_64\n", allocated);
  const std::size_t queries = position("function qkv_query_gradients_bfloat16_64\n", prepared);
  const std::size_t keys = position("function qkv_key_gradients_bfloat16_64\n", queries);
  ASSERT_NE(keys, std::string::npos) << text;
  EXPECT_LT(position("launch 80 1 1 128 1 1 ", prepared), queries) << text;
  EXPECT_LT(position("launch 80 1 1 128 1 1 ", queries), keys) << text;
  EXPECT_LT(position("launch 64 1 1 128 1 1 ", keys), position("free\n", keys)) << text;
  EXPECT_TRUE(text.ends_with("pop\n")) << text;

  BackwardArrays some;
  some.gradients.q = {};
  EXPECT_EQ(launched(some).find("query_gradients"), std::string::npos);
  some = {};
  some.gradients.k = some.gradients.v = {};
  EXPECT_EQ(launched(some).find("key_gradients"), std::string::npos);

  // For the gradient of slopes, the call allocates 4 bytes more for each query of each head. One
  // block sums the gradient of one slope or sink, of which there are 8 each.
  some.options.alibi = some.options.sinks = BackwardArrays::at(9, {8});
  some.gradients.alibi = BackwardArrays::at(10, {8});
  some.gradients.sinks = BackwardArrays::at(11, {8});
  const std::string heads = launched(some);
  for (const std::string line :
       {"allocate 19200\n", "function qkv_distance_gradients_bfloat16_64\n",
        "function qkv_head_gradients_slopes\n", "function qkv_head_gradients_sinks\n",
        "launch 8 1 1 128 1 1 "}) {
    EXPECT_NE(heads.find(line), std::string::npos) << line << heads;
  }
}

// Returns the names of the kernels that were loaded, in order, without "qkv_". A kernel is loaded
// once, so those that an earlier call launched are missing.
std::string functions_in(const std::string& calls) {
  std::string names;
  constexpr std::string_view kStart = "function qkv_";
  for (std::size_t at = calls.find(kStart); at != std::string::npos; at = calls.find(kStart, at)) {
    at += kStart.size();
    names += calls.substr(at, calls.find('\n', at) - at) + " ";
  }
  return names;
}

TEST_F(CudaBackward, LaunchesTheKernelsOfFloat32) {
  if (cuda::images().empty()) GTEST_SKIP() << cuda::why_no_device();
  BackwardArrays x(DType::kFloat32);
  const auto launched = [&] {
    run(x);
    return calls();
  };
  std::string text = launched();
  EXPECT_EQ(functions_in(text),
            "float_gradients_prepare float_gradients_queries float_gradients_keys ");
  EXPECT_NE(text.find("allocate " + std::to_string(16 * 4800) + "\n"), std::string::npos) << text;
  x.gradients.write = Write::kAccumulate;
  text = launched();
  const Index sums = 4 * 64 * (4800 + 2 * 4000);
  EXPECT_NE(text.find("allocate " + std::to_string(16 * 4800 + sums) + "\n"), std::string::npos)
      << text;

  x.gradients = {.v = x.gradients.v};
  x.options.score = Additive{BackwardArrays::at(9, {40, 64}, DType::kFloat32),
                             BackwardArrays::at(10, {40, 64}, DType::kFloat32),
                             BackwardArrays::at(11, {40}, DType::kFloat32)};
  text = launched();
  EXPECT_EQ(functions_in(text),
            "additive_gradients_project additive_gradients_prepare "
            "additive_gradients_keys ");
  const Index projections = 4 * 40 * (4800 + 4000);
  EXPECT_NE(text.find("allocate " + std::to_string(16 * 4800 + projections) + "\n"),
            std::string::npos)
      << text;
  x.gradients.score = Additive::Gradient{.wk = BackwardArrays::at(12, {40, 64}, DType::kFloat32),
                                         .v = BackwardArrays::at(13, {40}, DType::kFloat32)};
  text = launched();
  EXPECT_EQ(functions_in(text),
            "additive_gradients_queries additive_gradients_matrices "
            "additive_gradients_units ");
  EXPECT_NE(text.find("allocate " +
                      std::to_string(16 * 4800 + projections + 4 * 40 * (2 * 4800 + 4000)) + "\n"),
            std::string::npos)
      << text;
}

TEST_F(CudaBackward, RefusesWhatNoKernelSupports) {
  const auto reason = [&](const BackwardArrays& x) {
    std::string text = refused(x);
    constexpr std::string_view kStart = "options need what no CUDA kernel supports: ";
    EXPECT_TRUE(text.starts_with(kStart)) << text;
    return text.substr(std::min(text.size(), kStart.size()));
  };
  BackwardArrays x;
  x.sources.weights = ConstView(BackwardArrays::at(9, {2, 8, 300, 500}, DType::kFloat32));
  EXPECT_EQ(reason(x), "gradients of weights (output_gradients.weights)");
  x = {};
  for (const Dims& shape : {Dims{1, 500}, Dims{300, 1}}) {
    x.options.bias = BackwardArrays::at(9, shape);
    x.gradients.bias = BackwardArrays::at(10, shape);
    EXPECT_EQ(reason(x), "the gradient of a bias that is broadcast over queries or keys");
  }
  x = {};
  x.inputs.k = BackwardArrays::at(1, {4, 500, 64});
  x.gradients.k = BackwardArrays::at(7, {4, 500, 64});
  EXPECT_EQ(reason(x), "the gradient of a k that is broadcast over batch entries or heads");
  x = {};
  x.options.score = Cosine{};
  EXPECT_EQ(reason(x), "input transforms (cosine and bilinear scores, QK-norm, rotary positions)");
  x = {};
  x.options.score = Additive{BackwardArrays::at(9, {40, 64}), BackwardArrays::at(10, {40, 64}),
                             BackwardArrays::at(11, {40})};
  EXPECT_EQ(reason(x), "an additive score of q of bfloat16");

  const DType dtype = DType::kFloat32;
  BackwardArrays wide(dtype);
  wide.options.sinks = BackwardArrays::at(9, {8}, dtype);
  wide.gradients.sinks = BackwardArrays::at(10, {8}, dtype);
  EXPECT_EQ(reason(wide), "gradients of float32 other than those of q, k and v");
  wide.options.score =
      Additive{BackwardArrays::at(11, {40, 64}, dtype), BackwardArrays::at(12, {40, 64}, dtype),
               BackwardArrays::at(13, {40}, dtype)};
  EXPECT_EQ(reason(wide), "the gradient of sinks of an additive score");
  wide.gradients.sinks = {};
  wide.options.alibi = BackwardArrays::at(14, {8}, dtype);
  wide.gradients.alibi = BackwardArrays::at(15, {8}, dtype);
  EXPECT_EQ(reason(wide), "the gradient of alibi of an additive score");
  wide.gradients.alibi = {};
  wide.options.bias = BackwardArrays::at(14, {300, 500}, dtype);
  wide.gradients.bias = BackwardArrays::at(15, {300, 500}, dtype);
  EXPECT_EQ(reason(wide), "the gradient of a bias of an additive score");
  wide.gradients.bias = {};
  wide.inputs.v = BackwardArrays::at(2, {4, 500, 64}, dtype);
  wide.gradients.v = BackwardArrays::at(8, {4, 500, 64}, dtype);
  EXPECT_EQ(reason(wide), "the gradient of a v that is broadcast over batch entries or heads");
  wide.sources.weights = ConstView(BackwardArrays::at(14, {2, 8, 300, 500}, dtype));
  EXPECT_EQ(reason(wide), "gradients of weights (output_gradients.weights)");
}

TEST_F(CudaBackward, RefusesArraysOfOtherMemoryByName) {
  const auto host = [](const Dims& shape, DType dtype = DType::kBFloat16) {
    return array(64, dtype, shape);
  };
  BackwardArrays x;
  x.saved.lse = host(BackwardArrays::kRows, DType::kFloat32);
  EXPECT_EQ(refused(x), "saved.lse must be in the memory of device 0, got memory of the host");
  x = {};
  x.sources.out = host(BackwardArrays::kOut);
  EXPECT_EQ(refused(x),
            "output_gradients.out must be in the memory of device 0, got memory of the host");
  x = {};
  x.gradients.v = host(BackwardArrays::kKeys);
  EXPECT_EQ(refused(x),
            "input_gradients.v must be in the memory of device 0, got memory of the host");
}

TEST_F(CudaCall, RefusesAbsentAndOldDevices) {
  const DType dtype = DType::kBFloat16;
  EXPECT_NE(error(inputs(dtype), {}, outputs(dtype), {.device = 3}).find("stream"),
            std::string::npos);
  EXPECT_NE(error(inputs(dtype), {}, outputs(dtype), {.device = 1}).find("Tesla T4"),
            std::string::npos);
}

TEST_F(CudaCall, WithoutQueriesLaunchesNothing) {
  const Inputs in{array(kMemory, DType::kBFloat16, {2, 0, 64}),
                  array(kMemory, DType::kBFloat16, {2, 5, 64})};
  cuda::run_attention(driver_, in, {}, {.lse = array(kMemory, DType::kFloat32, {2, 0})}, {});
  EXPECT_EQ(calls().find("launch"), std::string::npos);
}

}  // namespace
}  // namespace qkv::test
