// SPDX-License-Identifier: Apache-2.0
#include "cuda/call.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <qkv/error.h>

#include "attention/validate/bind.h"
#include "attention/validate/gradients.h"
#include "attention/validate/resolve.h"
#include "core/message.h"
#include "cuda/additive_gradient_launch.h"
#include "cuda/additive_launch.h"
#include "cuda/float_launch.h"
#include "cuda/forward_launch.h"
#include "cuda/gradient_launch.h"
#include "cuda/images.h"
#include "cuda/stream_memory.h"

namespace qkv::cuda {
namespace {

using core::text;

constexpr std::string_view kAttention = "cuda::attention";
constexpr std::string_view kAttentionBackward = "cuda::attention_backward";

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

// Checks that an array is in the device's memory, unless it has no elements. Managed memory is the
// memory of every device.
void check_memory(const Driver& driver, std::string_view function, int device,
                  std::string_view name, const ConstView& view) {
  if (!view.given()) return;
  for (const Index size : view.shape()) {
    if (size == 0) return;
  }
  const Memory memory = driver.memory_of(view.data());
  if (memory.kind == MemoryKind::kManaged) return;
  if (memory.kind == MemoryKind::kDevice && memory.device == device) return;
  throw Error(function, name,
              text("must be in the memory of device ", device, ", got ", place_of(memory)));
}

[[noreturn]] void refuse(std::string_view function, const std::string& reason) {
  throw Error(function, "options", text("need what no CUDA kernel supports: ", reason));
}

void check_images(std::string_view function) {
  if (!images().empty()) return;
  throw Error(function, "stream", text("names a device, but ", why_no_device()));
}

// ---- implementations ------------------------------------------------------------------------

// The functions that compute calls with one kind of score, and with q of one type or of any type.
struct Implementation {
  core::PairProduct product;
  DType dtype;  // of q; kNone: any type
  // Return what is not supported about a call, or an empty string.
  std::string (*unsupported)(const core::Problem& p, const core::Results& results);
  std::string (*gradients_unsupported)(const core::Problem& p, const core::GradientSources& from,
                                       const core::GradientResults& to);
  // Put the work of a call that is supported into the stream.
  void (*run)(Driver& driver, const core::Problem& p, const core::Results& results,
              const Stream& stream);
  void (*run_backward)(Driver& driver, const core::Problem& p, const core::GradientSources& from,
                       const core::GradientResults& to, const Stream& stream);
};

void launch_all(Driver& driver, const Stream& stream, const auto& launches) {
  for (const KernelLaunch& launch : launches.kernels) {
    Kernel& kernel = driver.kernel(stream.device, image(launch.kernel->image), launch.kernel->name);
    driver.launch(kernel, {static_cast<unsigned>(launch.blocks)},
                  {static_cast<unsigned>(launch.kernel->threads)}, launch.kernel->shared_bytes,
                  stream.handle, launches.arguments);
  }
}

void run_forward(Driver& driver, const core::Problem& p, const core::Results& results,
                 const Stream& stream) {
  ForwardLaunches launches = forward_launches(p, results);
  const StreamMemory statistics(driver, stream.handle, launches.statistics_bytes);
  launches.arguments.statistics = statistics.as<RowStatistics>();
  launch_all(driver, stream, launches);
}

void run_additive(Driver& driver, const core::Problem& p, const core::Results& results,
                  const Stream& stream) {
  AdditiveLaunches launches = additive_launches(p, results);
  if (launches.kernels.empty()) return;
  const StreamMemory projections(driver, stream.handle, launches.projection_bytes);
  set_projections(launches, projections.as<float>());
  launch_all(driver, stream, launches);
}

void run_gradients(Driver& driver, const core::Problem& p, const core::GradientSources& from,
                   const core::GradientResults& to, const Stream& stream) {
  GradientLaunches launches = gradient_launches(p, from, to);
  const StreamMemory statistics(driver, stream.handle, launches.statistics_bytes);
  const StreamMemory slope_terms(driver, stream.handle, launches.slope_terms_bytes);
  launches.arguments.call.statistics = statistics.as<RowStatistics>();
  launches.arguments.slope_terms = slope_terms.as<float>();
  launch_all(driver, stream, launches);
}

void run_additive_gradients(Driver& driver, const core::Problem& p,
                            const core::GradientSources& from, const core::GradientResults& to,
                            const Stream& stream) {
  AdditiveGradientLaunches launches = additive_gradient_launches(p, from, to);
  const StreamMemory memory(driver, stream.handle, launches.bytes);
  set_memory(launches, p, memory.as<float>());
  launch_all(driver, stream, launches);
}

void run_float(Driver& driver, const core::Problem& p, const core::Results& results,
               const Stream& stream) {
  launch_all(driver, stream, float_launches(p, results));
}

void run_float_gradients(Driver& driver, const core::Problem& p, const core::GradientSources& from,
                         const core::GradientResults& to, const Stream& stream) {
  FloatGradientLaunches launches = float_gradient_launches(p, from, to);
  const StreamMemory memory(driver, stream.handle, launches.bytes);
  set_memory(launches, p, memory.as<float>());
  launch_all(driver, stream, launches);
}

// The first entry with a call's kind of score and type of q computes the call, or says what it does
// not support.
constexpr Implementation kImplementations[] = {
    {core::PairProduct::kDot, DType::kFloat32, &float_unsupported, &float_gradients_unsupported,
     &run_float, &run_float_gradients},
    {core::PairProduct::kDot, DType::kNone, &forward_unsupported, &gradients_unsupported,
     &run_forward, &run_gradients},
    {core::PairProduct::kTanh, DType::kNone, &additive_unsupported, &additive_gradients_unsupported,
     &run_additive, &run_additive_gradients},
};

const Implementation& implementation_for(const core::Problem& p) {
  return *std::ranges::find_if(kImplementations, [&](const Implementation& one) {
    return one.product == p.product && (one.dtype == DType::kNone || one.dtype == p.dtype);
  });
}

}  // namespace

void run_attention(Driver& driver, const Inputs& inputs, const Options& options,
                   const Outputs& outputs, const Stream& stream) {
  core::ResolvedProblem p;
  attn::resolve(kAttention, {}, inputs, options, p, {.memory = core::Memory::kDevice});
  const core::Results results = attn::bind_outputs(p, outputs);
  attn::check_overlap(p, inputs, options, outputs);
  const Implementation& implementation = implementation_for(p);
  const std::string unsupported = implementation.unsupported(p, results);
  if (!unsupported.empty()) refuse(kAttention, unsupported);
  const CurrentContext context(driver, kAttention, stream.device);
  const auto check = [&](std::string_view name, const ConstView& view) {
    check_memory(driver, kAttention, stream.device, name, view);
  };
  attn::visit_inputs(inputs, options, check);
  for_each_buffer(outputs, check);
  implementation.run(driver, p, results, stream);
}

void run_attention_backward(Driver& driver, const Inputs& inputs, const Options& options,
                            const Saved& saved, const OutputGradients& output_gradients,
                            const InputGradients& input_gradients, const Stream& stream) {
  core::ResolvedProblem p;
  attn::resolve(kAttentionBackward, {}, inputs, options, p, {.memory = core::Memory::kDevice});
  const core::GradientSources from = attn::bind_sources(p, saved, output_gradients);
  const core::GradientResults to = attn::bind_gradients(p, inputs, options, input_gradients);
  attn::check_overlap(p, inputs, options, saved, output_gradients, input_gradients);
  const Implementation& implementation = implementation_for(p);
  const std::string unsupported = implementation.gradients_unsupported(p, from, to);
  if (!unsupported.empty()) refuse(kAttentionBackward, unsupported);
  const CurrentContext context(driver, kAttentionBackward, stream.device);
  const auto check = [&](std::string_view name, const ConstView& view) {
    check_memory(driver, kAttentionBackward, stream.device, name, view);
  };
  attn::visit_inputs(inputs, options, check);
  check("saved.out", saved.out);
  check("saved.lse", saved.lse);
  check("output_gradients.out", output_gradients.out);
  check("output_gradients.lse", output_gradients.lse);
  attn::for_each_gradient(input_gradients, inputs, options,
                          [&](std::string_view name, const View& gradient,
                              const attn::GradientSource&) { check(name, gradient); });
  implementation.run_backward(driver, p, from, to, stream);
}

void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
               const Stream& stream) {
  check_images(kAttention);
  run_attention(driver(), inputs, options, outputs, stream);
}

void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                        const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, const Stream& stream) {
  check_images(kAttentionBackward);
  run_attention_backward(driver(), inputs, options, saved, output_gradients, input_gradients,
                         stream);
}

}  // namespace qkv::cuda
