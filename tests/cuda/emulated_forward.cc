// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_forward.h"

#include <cmath>
#include <vector>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "cuda/forward_launch.h"
#include "tests/cuda/emulated_kernels.h"

namespace qkv::test {
std::string emulated_unsupported(const Inputs& inputs, const Options& options,
                                 const Outputs& outputs) {
  core::ResolvedProblem p;
  attn::resolve("attention", {}, inputs, options, p);
  return cuda::forward_unsupported(p, attn::bind_outputs(p, outputs));
}

void emulated_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                        std::uint32_t seed) {
  core::ResolvedProblem p;
  attn::resolve("attention", {}, inputs, options, p);
  const core::Results results = attn::bind_outputs(p, outputs);
  cuda::ForwardLaunches launches = cuda::forward_launches(p, results);
  std::vector<cuda::RowStatistics> statistics(
      launches.statistics_bytes / sizeof(cuda::RowStatistics), {NAN, NAN, NAN, NAN});
  if (!statistics.empty()) launches.arguments.statistics = statistics.data();
  for (const cuda::KernelLaunch& launch : launches.kernels) {
    emulate_kernel(launch.kernel->name, launch.blocks, launch.kernel->threads,
                   launch.kernel->shared_bytes, &launches.arguments, seed);
  }
}

}  // namespace qkv::test
