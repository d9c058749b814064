// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_forward.h"

#include <cstring>
#include <stdexcept>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "cuda/device/forward.h"
#include "cuda/forward_launch.h"
#include "tests/cuda/emulator.h"

namespace qkv::test {
namespace {

void run_kernel(const char* name, const cuda::ForwardArguments& arguments) {
#define QKV_KERNEL(NAME, SHAPE, TILES, EVERY)                  \
  if (std::strcmp(name, "qkv_forward_" #NAME) == 0) {          \
    cuda::forward<cuda::SHAPE, cuda::TILES, EVERY>(arguments); \
    return;                                                    \
  }
  QKV_FOR_EACH_FORWARD(QKV_KERNEL)
#undef QKV_KERNEL
  throw std::logic_error(std::string("no kernel ") + name);
}

}  // namespace

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
  emulate({launch.blocks, launch.kernel->threads, launch.kernel->shared_bytes, seed},
          [&] { run_kernel(launch.kernel->name, launch.arguments); });
}

}  // namespace qkv::test
