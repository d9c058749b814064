// SPDX-License-Identifier: Apache-2.0
#include "cuda/additive_launch.h"

#include <algorithm>

#include "core/message.h"
#include "core/order.h"
#include "cuda/device/additive_shape.h"
#include "cuda/forward_arguments.h"

namespace qkv::cuda {
namespace {

using core::Problem;
using core::text;

static_assert(kUnitChunk == core::kUnitChunk);

constexpr const char* kImage = "additive";

constexpr TileKernel kProject{kImage,
                              "qkv_additive_project",
                              DType::kFloat32,
                              0,  // of any width
                              true,
                              ProjectionShape::kRows,
                              0,  // without keys
                              ProjectionShape::kThreads,
                              ProjectionShape::kSharedBytes};

constexpr TileKernel kAdditive[] = {
#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                                            \
  {kImage,       "qkv_additive_" #NAME, DType::kFloat32, SHAPE::kWidth,      true, \
   SHAPE::kRows, SHAPE::kKeys,          SHAPE::kThreads, SHAPE::kSharedBytes},
    QKV_FOR_EACH_ADDITIVE(QKV_KERNEL)
#undef QKV_KERNEL
};

const TileKernel& kernel_for(const Problem& p) {
  for (const TileKernel& one : kAdditive) {
    if (one.width >= p.E) return one;
  }
  return kAdditive[0];  // not reached: additive_unsupported() has checked the width
}

Projections projections(Index heads, Index rows) {
  Projections x;
  x.heads = static_cast<int>(heads);
  x.rows = static_cast<int>(rows);
  x.row_blocks = static_cast<int>((rows + ProjectionShape::kRows - 1) / ProjectionShape::kRows);
  return x;
}

}  // namespace

std::int64_t float_count(const core::Problem& p, const AdditiveArguments& a, const Projections& x) {
  return entries_of(p) * x.heads * a.quads * x.rows * 4;
}

std::int64_t projecting_blocks(const core::Problem& p, const AdditiveArguments& a,
                               const Projections& x) {
  return entries_of(p) * x.heads * x.row_blocks * a.unit_blocks;
}

AdditiveArguments additive_arguments(const Problem& p, const core::Results& results,
                                     bool key_per_head) {
  AdditiveArguments a;
  a.call = forward_arguments(p, results);
  a.wq = device_array(p.query_maps.product.w);
  a.wk = device_array(p.key_maps.product.w);
  a.b = device_array(p.query_maps.product.b);
  a.v = device_array(p.score_v);
  a.Dq = static_cast<int>(p.Dq);
  a.U = static_cast<int>(p.U);
  a.quads = (a.U + 3) / 4;
  a.unit_blocks = (a.U + ProjectionShape::kUnits - 1) / ProjectionShape::kUnits;
  a.left = projections(p.H, p.q_rows);
  a.right = projections(key_per_head || a.wk.head != 0 ? p.H : p.G, p.k_rows);
  a.left_blocks = projecting_blocks(p, a, a.left);
  return a;
}

std::string additive_call_unsupported(const Problem& p) {
  if (p.dtype != DType::kFloat32) return text("an additive score of q of ", name_of(p.dtype));
  if (p.k.dtype != DType::kFloat32) return text("q of float32 with k of ", name_of(p.k.dtype));
  if (!p.query_maps.maps().empty() || !p.key_maps.maps().empty()) {
    return "an additive score with QK-norm or rotary positions";
  }
  if (std::max({p.Dq, p.Dk, p.E, p.U}) > kLargestSize) return "2^31 or more channels or units";
  return options_unsupported(p);
}

std::string additive_unsupported(const Problem& p, const core::Results& results) {
  std::string reason = additive_call_unsupported(p);
  if (!reason.empty()) return reason;
  if (p.E > kLargestWidth) return text("values of more than ", kLargestWidth, " channels");
  core::Results rest = results;
  rest.out = rest.lse = rest.row_max = {};
  if (any_given(rest)) return "results of an additive score other than out, lse and row_max";
  return "";
}

AdditiveLaunches additive_launches(const Problem& p, const core::Results& results) {
  AdditiveLaunches launches;
  AdditiveArguments& a = launches.arguments;
  const TileKernel& kernel = kernel_for(p);
  a = additive_arguments(p, results);
  a.call.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, kernel.rows));
  const Index blocks = a.call.row_blocks * p.H * entries_of(p);
  if (p.q_rows == 0 || blocks == 0) return launches;
  launches.kernels = {{&kProject, a.left_blocks + projecting_blocks(p, a, a.right)},
                      {&kernel, blocks}};
  launches.left_count = float_count(p, a, a.left);
  launches.projection_bytes =
      static_cast<std::size_t>(launches.left_count + float_count(p, a, a.right)) * sizeof(float);
  return launches;
}

void set_projections(AdditiveLaunches& launches, float* memory) {
  launches.arguments.left.data = memory;
  launches.arguments.right.data = memory + launches.left_count;
}

}  // namespace qkv::cuda
