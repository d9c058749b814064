// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_forward.h"

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
  const cuda::ForwardLaunch launch = cuda::forward_launch(p, results);
  emulate_kernel(launch.kernel->name, launch.blocks, launch.kernel->threads,
                 launch.kernel->shared_bytes, &launch.arguments, seed);
}

}  // namespace qkv::test
