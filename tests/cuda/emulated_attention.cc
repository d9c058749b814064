// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_attention.h"

#include <cmath>
#include <vector>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "cuda/additive_gradient_launch.h"
#include "cuda/additive_launch.h"
#include "cuda/float_launch.h"
#include "cuda/forward_launch.h"
#include "cuda/gradient_launch.h"
#include "tests/cuda/emulated_kernels.h"

namespace qkv::test {
namespace {

void emulate_all(const auto& launches, std::uint32_t seed) {
  for (const cuda::KernelLaunch& launch : launches.kernels) {
    emulate_kernel(launch.kernel->name, launch.blocks, launch.kernel->threads,
                   launch.kernel->shared_bytes, &launches.arguments, seed);
  }
}

// Returns scratch memory for the kernels of one call, filled with `nan`, so that a number that is
// read before it is written shows in the results.
template <class T>
std::vector<T> memory(std::size_t bytes, const T& nan) {
  return std::vector<T>(bytes / sizeof(T), nan);
}

// Four floats: the unit of scratch memory, which the launches expect to be aligned to 16 bytes.
struct alignas(16) FourFloats {
  float x[4];
};

}  // namespace

std::string emulated_unsupported(const Inputs& inputs, const Options& options,
                                 const Outputs& outputs) {
  core::ResolvedProblem p;
  attn::resolve("attention", {}, inputs, options, p);
  const core::Results results = attn::bind_outputs(p, outputs);
  if (p.product == core::PairProduct::kTanh) return cuda::additive_unsupported(p, results);
  if (p.dtype == DType::kFloat32) return cuda::float_unsupported(p, results);
  return cuda::forward_unsupported(p, results);
}

void emulated_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                        std::uint32_t seed) {
  core::ResolvedProblem p;
  attn::resolve("attention", {}, inputs, options, p);
  const core::Results results = attn::bind_outputs(p, outputs);
  if (p.product == core::PairProduct::kTanh) {
    cuda::AdditiveLaunches launches = cuda::additive_launches(p, results);
    if (launches.kernels.empty()) return;
    auto projections = memory<FourFloats>(launches.projection_bytes, {{NAN, NAN, NAN, NAN}});
    cuda::set_projections(launches, projections.data()->x);
    emulate_all(launches, seed);
    return;
  }
  cuda::ForwardLaunches launches = p.dtype == DType::kFloat32 ? cuda::float_launches(p, results)
                                                              : cuda::forward_launches(p, results);
  auto statistics = memory<cuda::RowStatistics>(launches.statistics_bytes, {NAN, NAN, NAN, NAN});
  if (!statistics.empty()) launches.arguments.statistics = statistics.data();
  emulate_all(launches, seed);
}

std::string emulated_unsupported(const Inputs& inputs, const Options& options, const Saved& saved,
                                 const OutputGradients& sources, const InputGradients& gradients) {
  core::ResolvedProblem p;
  attn::resolve("attention_backward", {}, inputs, options, p);
  const core::GradientSources from = attn::bind_sources(p, saved, sources);
  const core::GradientResults to = attn::bind_gradients(p, inputs, options, gradients);
  if (p.product == core::PairProduct::kTanh)
    return cuda::additive_gradients_unsupported(p, from, to);
  if (p.dtype == DType::kFloat32) return cuda::float_gradients_unsupported(p, from, to);
  return cuda::gradients_unsupported(p, from, to);
}

void emulated_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                       const OutputGradients& sources, const InputGradients& gradients,
                       std::uint32_t seed) {
  core::ResolvedProblem p;
  attn::resolve("attention_backward", {}, inputs, options, p);
  const core::GradientSources from = attn::bind_sources(p, saved, sources);
  const core::GradientResults to = attn::bind_gradients(p, inputs, options, gradients);
  const auto run = [&](auto launches) {
    auto numbers = memory<FourFloats>(launches.bytes, {{NAN, NAN, NAN, NAN}});
    cuda::set_memory(launches, p, numbers.empty() ? nullptr : numbers.data()->x);
    emulate_all(launches, seed);
  };
  if (p.product == core::PairProduct::kTanh) {
    run(cuda::additive_gradient_launches(p, from, to));
    return;
  }
  if (p.dtype == DType::kFloat32) {
    run(cuda::float_gradient_launches(p, from, to));
    return;
  }
  cuda::GradientLaunches launches = cuda::gradient_launches(p, from, to);
  auto statistics = memory<cuda::RowStatistics>(launches.statistics_bytes, {NAN, NAN, NAN, NAN});
  auto slope_terms = memory<float>(launches.slope_terms_bytes, NAN);
  if (!statistics.empty()) launches.arguments.call.statistics = statistics.data();
  if (!slope_terms.empty()) launches.arguments.slope_terms = slope_terms.data();
  emulate_all(launches, seed);
}

}  // namespace qkv::test
