// SPDX-License-Identifier: Apache-2.0
#include "cuda/float_launch.h"

#include <algorithm>
#include <cstdint>

#include "core/message.h"
#include "core/order.h"
#include "cuda/device/float_shape.h"
#include "cuda/forward_arguments.h"
#include "cuda/gradient_launch.h"

namespace qkv::cuda {
namespace {

using core::Problem;
using core::text;

constexpr const char* kFloatImage = "float";

constexpr TileKernel kFloatForward[] = {
#define QKV_KERNEL(NAME, SHAPE) \
  {kFloatImage,                 \
   "qkv_float_forward_" #NAME,  \
   DType::kFloat32,             \
   SHAPE::kWidth,               \
   true,                        \
   SHAPE::kRows,                \
   SHAPE::kKeys,                \
   SHAPE::kThreads,             \
   SHAPE::kSharedBytes},
    QKV_FOR_EACH_FLOAT_FORWARD(QKV_KERNEL)
#undef QKV_KERNEL
};

// The gradient kernels by name.
struct FloatGradients {
#define QKV_KERNEL(NAME)                                               \
  TileKernel NAME = untiled(kFloatImage, "qkv_float_gradients_" #NAME, \
                            FloatGradientShape::kThreads, FloatGradientShape::kSharedBytes);
  QKV_FOR_EACH_FLOAT_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr FloatGradients kFloatGradients;

const TileKernel& float_kernel_for(const Problem& p) {
  for (const TileKernel& kernel : kFloatForward) {
    if (kernel.width >= p.E) return kernel;
  }
  return kFloatForward[0];  // not reached: float_unsupported() has checked the width
}

// Returns what all kernels of float32 lack for a call, whatever its results, or an empty string.
std::string float_call_unsupported(const Problem& p) {
  if (p.k.dtype != DType::kFloat32) return text("q of float32 with k of ", name_of(p.k.dtype));
  std::string reason = transforms_unsupported(p);
  if (!reason.empty()) return reason;
  if (std::max({p.Dq, p.Dk, p.E}) > kLargestSize) return "2^31 or more channels";
  return options_unsupported(p);
}

// Calls f(address, count) for each scratch array of the kernels: `address` is the member of the
// arguments that must point to it, `count` its number of floats, rounded up to a multiple of 4.
template <class F>
void for_each_float_part(FloatGradientArguments& x, const Problem& p, const F& f) {
  GradientArguments& g = x.gradients;
  f(g.call.statistics, entries_of(p) * p.H * p.q_rows * 4);
  if (!g.adds) return;
  const auto part = [&](const DeviceArray& gradient, DeviceArray& sums, Index heads, Index rows,
                        Index width) {
    if (is_given(gradient)) f(sums.data, (entries_of(p) * heads * rows * width + 3) / 4 * 4);
  };
  part(g.dq, x.q_sums, p.H, p.q_rows, p.Dq);
  part(g.dk, x.k_sums, p.G, p.k_rows, p.Dk);
  part(g.dv, x.v_sums, p.G, p.k_rows, p.E);
}

}  // namespace

std::string float_unsupported(const Problem& p, const core::Results& results) {
  std::string reason = float_call_unsupported(p);
  if (!reason.empty()) return reason;
  if (p.E > kLargestWidth) return text("values of more than ", kLargestWidth, " channels");
  core::Results rest = results;
  rest.out = rest.lse = rest.row_max = {};
  return any_given(rest) ? "results of float32 other than out, lse and row_max" : "";
}

ForwardLaunches float_launches(const Problem& p, const core::Results& results) {
  ForwardLaunches launches;
  const TileKernel& kernel = float_kernel_for(p);
  ForwardArguments& a = launches.arguments;
  a = forward_arguments(p, results);
  a.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, kernel.rows));
  const Index blocks = a.row_blocks * p.H * entries_of(p);
  if (blocks > 0) launches.kernels = {{&kernel, blocks}};
  return launches;
}

std::string float_gradients_unsupported(const Problem& p, const core::GradientSources& from,
                                        const core::GradientResults& to) {
  std::string reason = float_call_unsupported(p);
  if (!reason.empty()) return reason;
  if (from.dweights.given()) return "gradients of weights (output_gradients.weights)";
  core::GradientResults rest = to;
  rest.q = rest.k = rest.v = {};
  for (const core::GradientTarget* one : rest.all()) {
    if (one->given()) return "gradients of float32 other than those of q, k and v";
  }
  return broadcast_unsupported(p, to);
}

FloatGradientLaunches float_gradient_launches(const Problem& p, const core::GradientSources& from,
                                              const core::GradientResults& to) {
  using Shape = FloatGradientShape;
  FloatGradientLaunches launches;
  FloatGradientArguments& x = launches.arguments;
  GradientArguments& g = x.gradients;
  ForwardArguments& a = g.call;
  a = forward_arguments(p, {});
  a.out = device_array(from.out);
  a.lse = device_array(from.lse);
  g.dout = device_array(from.dout);
  g.dlse = device_array(from.dlse);
  g.adds = to.q.accumulate;  // equal in all targets
  const auto sums_of = [&](const core::GradientTarget& gradient, DeviceArray& array, Index heads,
                           Index rows, Index width) {
    array = gradient.given() ? device_array(gradient.direct) : DeviceArray();
    return g.adds ? rows_in_c_order(p, heads, rows, width) : array;
  };
  x.q_sums = sums_of(to.q, g.dq, p.H, p.q_rows, p.Dq);
  x.k_sums = sums_of(to.k, g.dk, p.G, p.k_rows, p.Dk);
  x.v_sums = sums_of(to.v, g.dv, p.G, p.k_rows, p.E);
  a.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, Shape::kRows));
  a.key_blocks = static_cast<int>(blocks_of(p, p.k_rows, Shape::kKeys));
  const auto launch = [&](const TileKernel& kernel, Index blocks) {
    if (blocks > 0) launches.kernels.push_back({&kernel, blocks});
  };
  launch(kFloatGradients.prepare, entries_of(p) * p.H * a.row_blocks);
  if (is_given(g.dq)) launch(kFloatGradients.queries, entries_of(p) * p.H * a.row_blocks);
  if (is_given(g.dk) || is_given(g.dv)) {
    launch(kFloatGradients.keys, entries_of(p) * p.G * a.key_blocks);
  }
  for_each_float_part(x, p, [&](const auto&, std::int64_t count) {
    launches.bytes += static_cast<std::size_t>(count) * sizeof(float);
  });
  return launches;
}

// NOLINTNEXTLINE(readability-non-const-parameter): kernels write there.
void set_memory(FloatGradientLaunches& launches, const Problem& p, float* memory) {
  for_each_float_part(launches.arguments, p,
                      [&]<class Address>(Address& address, std::int64_t count) {
                        address = reinterpret_cast<Address>(memory);
                        memory += count;
                      });
}

}  // namespace qkv::cuda
