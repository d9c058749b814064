// SPDX-License-Identifier: Apache-2.0
#include "cuda/call.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "cuda/images.h"
#include "tests/support/errors.h"

// Calls on a fake driver (fake_driver.cc), whose device 0 has the memory from kMemory on, and
// device 2 that from 2 kMemory on.
namespace qkv::test {
namespace {

constexpr std::uintptr_t kMemory = std::uintptr_t{1} << 60U;

View array(std::uintptr_t address, DType dtype, const Dims& shape) {
  auto* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return {data, dtype, shape, contiguous_strides(shape)};
}

class CudaCall : public testing::Test {
 protected:
  static constexpr const char* kPath = QKV_FAKE_DRIVERS "/devices/libcuda.so.1";
  CudaCall() : driver_(kPath, 13000) { calls(); }

  static std::string calls() {
    void* const library = ::dlopen(kPath, RTLD_NOW);
    const auto taken = reinterpret_cast<const char* (*)()>(::dlsym(library, "fake_calls"));
    std::string text = taken();
    ::dlclose(library);
    return text;
  }

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
  // 3 blocks of 128 queries for each of 16 heads.
  const std::string plain = launched(DType::kBFloat16, {.masks = {Causal{}}});
  EXPECT_NE(plain.find("function qkv_forward_bfloat16_64\n"), std::string::npos) << plain;
  EXPECT_NE(plain.find("launch 48 1 1 128 1 1 "), std::string::npos) << plain;
  EXPECT_TRUE(plain.ends_with("pop\n")) << plain;
  const std::string every = launched(DType::kFloat16, {.softcap = 20});
  EXPECT_NE(every.find("function qkv_forward_float16_64_every\n"), std::string::npos) << every;
  EXPECT_NE(every.find("launch 48 1 1 128 1 1 "), std::string::npos) << every;
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
  EXPECT_EQ(refused(DType::kFloat32, {}, outputs(DType::kFloat32)), "q of float32");
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

TEST_F(CudaCall, RefusesDevicesThatAreNotThereOrTooOld) {
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
