// SPDX-License-Identifier: Apache-2.0
#include "cuda/call.h"

#include <string>
#include <string_view>

#include <qkv/error.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "core/message.h"
#include "cuda/forward_launch.h"
#include "cuda/images.h"
#include "cuda/stream_memory.h"

namespace qkv::cuda {
namespace {

using core::text;

constexpr std::string_view kAttention = "cuda::attention";

std::string place_of(const Memory& memory) {
  switch (memory.kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kManaged:
      return text("that of device ", memory.device);
    case MemoryKind::kHost:
    case MemoryKind::kUnknown:
      break;
  }
  return "memory of the host";
}

// Checks that an array with elements is in the device's memory. Managed memory is the memory of
// every device.
void check_memory(const Driver& driver, int device, std::string_view name, const ConstView& view) {
  if (!view.given()) return;
  for (const Index size : view.shape()) {
    if (size == 0) return;
  }
  const Memory memory = driver.memory_of(view.data());
  if (memory.kind == MemoryKind::kManaged) return;
  if (memory.kind == MemoryKind::kDevice && memory.device == device) return;
  throw Error(kAttention, name,
              text("must be in the memory of device ", device, ", got ", place_of(memory)));
}

}  // namespace

void run_attention(Driver& driver, const Inputs& inputs, const Options& options,
                   const Outputs& outputs, const Stream& stream) {
  core::ResolvedProblem p;
  attn::resolve(kAttention, {}, inputs, options, p, {.memory = core::Memory::kDevice});
  const core::Results results = attn::bind_outputs(p, outputs);
  attn::check_overlap(p, inputs, options, outputs);
  const std::string unsupported = forward_unsupported(p, results);
  if (!unsupported.empty()) {
    throw Error(kAttention, "options", text("need what no CUDA kernel supports: ", unsupported));
  }
  const CurrentContext context(driver, kAttention, stream.device);
  const auto check = [&](std::string_view name, const ConstView& view) {
    check_memory(driver, stream.device, name, view);
  };
  attn::visit_inputs(inputs, options, check);
  for_each_buffer(outputs, check);
  ForwardLaunches launches = forward_launches(p, results);
  const StreamMemory statistics(driver, stream.handle, launches.statistics_bytes);
  launches.arguments.statistics = statistics.as<RowStatistics>();
  for (const KernelLaunch& launch : launches.kernels) {
    Kernel& kernel = driver.kernel(stream.device, image(launch.kernel->image), launch.kernel->name);
    driver.launch(kernel, {static_cast<unsigned>(launch.blocks)},
                  {static_cast<unsigned>(launch.kernel->threads)}, launch.kernel->shared_bytes,
                  stream.handle, launches.arguments);
  }
}

void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
               const Stream& stream) {
  if (images().empty()) {
    throw Error(kAttention, "stream", text("names a device, but ", why_no_device()));
  }
  run_attention(driver(), inputs, options, outputs, stream);
}

}  // namespace qkv::cuda
