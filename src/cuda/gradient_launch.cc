// SPDX-License-Identifier: Apache-2.0
#include "cuda/gradient_launch.h"

#include "core/message.h"
#include "core/order.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/forward_arguments.h"
#include "cuda/forward_launch.h"

namespace qkv::cuda {
namespace {

using core::Problem;
using core::text;

constexpr const char* kGradientImage = "gradients";

constexpr TileKernel kPrepare[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES)                                               \
  entry<SHAPE, TILES>(kGradientImage, "qkv_prepare_gradients_" #NAME, false, false), \
      entry<SHAPE, TILES>(kGradientImage, "qkv_prepare_gradients_" #NAME, true, true),
    QKV_FOR_EACH_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr TileKernel kQueryGradients[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES)                                             \
  entry<SHAPE, TILES>(kGradientImage, "qkv_query_gradients_" #NAME, false, false), \
      entry<SHAPE, TILES>(kGradientImage, "qkv_query_gradients_" #NAME, true, true),
    QKV_FOR_EACH_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr TileKernel kKeyGradients[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES)                                           \
  entry<SHAPE, TILES>(kGradientImage, "qkv_key_gradients_" #NAME, false, false), \
      entry<SHAPE, TILES>(kGradientImage, "qkv_key_gradients_" #NAME, true, true),
    QKV_FOR_EACH_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};

constexpr TileKernel kBiasGradients[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES) \
  entry<SHAPE, TILES>(kGradientImage, "qkv_bias_gradients_" #NAME, true, true),
    QKV_FOR_EACH_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};

constexpr TileKernel kDistanceGradients[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES)                                                \
  entry<SHAPE, TILES>(kGradientImage, "qkv_distance_gradients_" #NAME, false, false), \
      entry<SHAPE, TILES>(kGradientImage, "qkv_distance_gradients_" #NAME, true, true),
    QKV_FOR_EACH_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};

constexpr std::uint32_t kSumBytes = kSummingThreads * sizeof(double);
constexpr TileKernel kSlopeGradients =
    untiled(kGradientImage, "qkv_head_gradients_slopes", kSummingThreads, kSumBytes);
constexpr TileKernel kSinkGradients =
    untiled(kGradientImage, "qkv_head_gradients_sinks", kSummingThreads, kSumBytes);

// Returns which requested gradients the kernels do not compute, or null.
const char* unsupported_gradient(const Problem& p, const core::GradientResults& to) {
  core::GradientResults rest = to;
  rest.q = rest.k = rest.v = rest.bias = rest.alibi = rest.sinks = {};
  const core::ResultOperand& bias = to.bias.direct;
  if (to.bias.given() &&
      ((bias.row_stride == 0 && p.q_rows != 1) || (bias.col_stride == 0 && p.k_rows != 1))) {
    return "the gradient of a bias that is broadcast over queries or keys";
  }
  for (const core::GradientTarget* target : rest.all()) {
    if (target->given()) return "gradients of parameters";
  }
  return nullptr;
}

// Whether the number of elements of a gradient differs from `elements`, the number after
// broadcasting: the gradient's elements are then sums of several terms, or of none.
bool is_broadcast(const core::GradientTarget& to, Index elements) {
  return to.given() && to.buffer.element_count() != elements;
}

// Returns the name of an array whose gradient would be summed over batch entries or heads, or null.
const char* broadcast_gradient(const Problem& p, const core::GradientResults& to) {
  const Index entries = entries_of(p);
  if (is_broadcast(to.q, entries * p.H * p.q_rows * p.Dq)) return "q";
  if (is_broadcast(to.k, entries * p.G * p.k_rows * p.Dk)) return "k";
  if (is_broadcast(to.v, entries * p.G * p.k_rows * p.E)) return "v";
  return nullptr;
}

}  // namespace

std::string broadcast_unsupported(const Problem& p, const core::GradientResults& to) {
  const char* name = broadcast_gradient(p, to);
  if (name == nullptr) return "";
  return text("the gradient of a ", name, " that is broadcast over batch entries or heads");
}

std::string gradients_unsupported(const Problem& p, const core::GradientSources& from,
                                  const core::GradientResults& to) {
  std::string reason = tiles_unsupported(p);
  if (!reason.empty()) return reason;
  if (from.dweights.given()) return "gradients of weights (output_gradients.weights)";
  const char* gradient = unsupported_gradient(p, to);
  if (gradient != nullptr) return gradient;
  reason = broadcast_unsupported(p, to);
  return reason.empty() ? options_unsupported(p) : reason;
}

GradientLaunches gradient_launches(const Problem& p, const core::GradientSources& from,
                                   const core::GradientResults& to) {
  static_assert(kLargeLse == core::kLargeLse);
  GradientLaunches launches;
  GradientArguments& g = launches.arguments;
  ForwardArguments& a = g.call;
  a = forward_arguments(p, {});
  a.out = read_in_tiles(from.out, p.E);
  a.lse = device_array(from.lse);
  g.dout = read_in_tiles(from.dout, p.E);
  g.dlse = device_array(from.dlse);
  const auto target = [](const core::GradientTarget& x) {
    return x.given() ? written_in_tiles(x.direct) : DeviceArray();
  };
  g.dq = target(to.q);
  g.dk = target(to.k);
  g.dv = target(to.v);
  const auto numbers = [](const core::GradientTarget& x) {
    return x.given() ? device_array(x.direct) : DeviceArray();
  };
  g.dbias = numbers(to.bias);
  g.dalibi = numbers(to.alibi);
  g.dsinks = numbers(to.sinks);
  g.adds = to.q.accumulate;  // equal in all targets
  const bool stages = a.bias.data != nullptr || a.keep.data != nullptr || a.padding.data != nullptr;
  const TileKernel& prepare = choose(kPrepare, p, stages);
  const TileKernel& query_gradients = choose(kQueryGradients, p, stages);
  const TileKernel& key_gradients = choose(kKeyGradients, p, stages);
  const auto launch = [&](const TileKernel& kernel, Index blocks) {
    if (blocks > 0) launches.kernels.push_back({&kernel, blocks});
  };
  a.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, prepare.rows));
  a.key_blocks = static_cast<int>(blocks_of(p, p.k_rows, key_gradients.keys));
  const Index heads = entries_of(p) * p.H;
  launch(prepare, heads * a.row_blocks);
  if (g.dq.data != nullptr) launch(query_gradients, heads * a.row_blocks);
  if (g.dk.data != nullptr || g.dv.data != nullptr) {
    launch(key_gradients, entries_of(p) * p.G * a.key_blocks);
  }
  const Index bias_tiles = Index{a.row_blocks} * a.key_blocks;
  if (g.dbias.data != nullptr && to.bias.buffer.element_count() > 0) {
    const Index matrices = to.bias.buffer.element_count() / (p.q_rows * p.k_rows);
    launch(choose(kBiasGradients, p, true), matrices * bias_tiles);
  }
  if (g.dalibi.data != nullptr) {
    launch(choose(kDistanceGradients, p, stages), heads * a.row_blocks);
    launch(kSlopeGradients, to.alibi.buffer.element_count());
  }
  if (g.dsinks.data != nullptr) launch(kSinkGradients, to.sinks.buffer.element_count());
  const auto rows = static_cast<std::size_t>(heads * p.q_rows);
  launches.statistics_bytes = rows * sizeof(RowStatistics);
  launches.slope_terms_bytes = g.dalibi.data != nullptr ? rows * sizeof(float) : 0;
  return launches;
}

}  // namespace qkv::cuda
