// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_launch.h"

#include <algorithm>

#include "core/message.h"
#include "cuda/device/forward_shape.h"
#include "cuda/forward_arguments.h"

namespace qkv::cuda {
namespace {

using core::Problem;
using core::text;

// ---- the list of kernels ----------------------------------------------------------------------

constexpr TileKernel kForward[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES, EVERY) \
  entry<SHAPE, TILES>((EVERY) ? "forward_every" : "forward", "qkv_forward_" #NAME, EVERY, EVERY),
    QKV_FOR_EACH_FORWARD(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr TileKernel kSumColumns[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES) \
  entry<SHAPE, TILES>("inspection", "qkv_sum_columns_" #NAME, true, true),
    QKV_FOR_EACH_INSPECTION(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr TileKernel kInspectRows[] = {
#define QKV_KERNEL(NAME, SHAPE, TILES) \
  entry<SHAPE, TILES>("inspection", "qkv_inspect_rows_" #NAME, true, true),
    QKV_FOR_EACH_INSPECTION(QKV_KERNEL)
#undef QKV_KERNEL
};

bool needs_every(const ForwardArguments& a) {
  return a.bias.data != nullptr || a.keep.data != nullptr || a.padding.data != nullptr ||
         a.alibi.data != nullptr || a.softcap > 0 || a.drops || !a.scales_in_exponent;
}

// Returns which requested results the kernels do not compute, or null.
const char* unsupported_result(const core::Results& results) {
  core::Results rest = results;
  rest.out = rest.lse = rest.row_max = rest.entropy = {};
  rest.columns.sums = rest.columns.value_sums = {};
  rest.weights.matrix = {};
  if (any_given(rest))
    return "results other than out, lse, row_max, entropy, column_sums, value_sums and weights";
  if (results.columns.indices.given() || results.weights.indices.given()) {
    return "results of listed queries";
  }
  return nullptr;
}

}  // namespace

std::string transforms_unsupported(const Problem& p) {
  if (p.query_maps.is_identity() && p.key_maps.is_identity()) return "";
  return "input transforms (cosine and bilinear scores, QK-norm, rotary positions)";
}

std::string tiles_unsupported(const Problem& p) {
  if (p.dtype != DType::kBFloat16 && p.dtype != DType::kFloat16) {
    return text("q of ", name_of(p.dtype));
  }
  std::string reason = transforms_unsupported(p);
  if (!reason.empty()) return reason;
  if (std::max({p.Dq, p.Dk, p.E}) > kLargestWidth) {
    return text("more than ", kLargestWidth, " channels");
  }
  return "";
}

std::string forward_unsupported(const Problem& p, const core::Results& results) {
  std::string reason = tiles_unsupported(p);
  if (!reason.empty()) return reason;
  const char* result = unsupported_result(results);
  if (result != nullptr) return result;
  return options_unsupported(p);
}

ForwardLaunches forward_launches(const Problem& p, const core::Results& results) {
  ForwardLaunches launches;
  ForwardArguments& a = launches.arguments;
  a = forward_arguments(p, results);
  const TileKernel& forward = choose(kForward, p, needs_every(a));
  const TileKernel& columns = choose(kSumColumns, p, true);
  const TileKernel& rows = choose(kInspectRows, p, true);
  const Index heads = p.H * entries_of(p);
  // kForward and kInspectRows may divide queries into blocks of different sizes.
  const auto launch = [&](const TileKernel& kernel, Index blocks) {
    if (blocks * heads > 0) launches.kernels.push_back({&kernel, blocks * heads});
  };
  a.key_blocks = static_cast<int>(blocks_of(p, p.k_rows, columns.keys));
  a.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, forward.rows));
  a.inspected_blocks = static_cast<int>(blocks_of(p, p.q_rows, rows.rows));
  launch(forward, a.row_blocks);
  if (results.columns.given()) launch(columns, a.key_blocks);
  if (results.entropy.given() || results.weights.matrix.given()) launch(rows, a.inspected_blocks);
  const bool inspects =
      results.columns.given() || results.entropy.given() || results.weights.matrix.given();
  if (inspects) {
    launches.statistics_bytes = static_cast<std::size_t>(heads * p.q_rows) * sizeof(RowStatistics);
  }
  return launches;
}

}  // namespace qkv::cuda
