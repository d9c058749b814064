// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_launch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <variant>

#include "core/message.h"
#include "cuda/device/forward_shape.h"

namespace qkv::cuda {
namespace {

using core::Operand;
using core::Problem;
using core::text;

// ---- the list of kernels ----------------------------------------------------------------------

constexpr DType dtype_of_tiles(BFloat16Tiles) { return DType::kBFloat16; }
constexpr DType dtype_of_tiles(Float16Tiles) { return DType::kFloat16; }

// A kernel's entry, from the shape of its tiles.
template <class Shape, class Tiles>
constexpr TileKernel entry(const char* image, const char* name, bool every, bool stages) {
  return {image,
          name,
          dtype_of_tiles(Tiles{}),
          Shape::kWidth,
          every,
          Shape::kRows,
          Shape::kKeys,
          Shape::kThreads,
          stages ? Shape::kEveryBytes : Shape::kSharedBytes};
}

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
constexpr Index kLargestWidth = 256;

// Block indices and the rows of a block are 32-bit.
constexpr Index kLargestSize = std::numeric_limits<std::int32_t>::max() - 1024;

// ---- arrays -------------------------------------------------------------------------------------

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Element::kFloat32;
    case DType::kBFloat16:
      return Element::kBFloat16;
    case DType::kFloat16:
      return Element::kFloat16;
    case DType::kBool:
    case DType::kUInt8:
      return Element::kUInt8;
    case DType::kInt8:
      return Element::kInt8;
    case DType::kInt16:
      return Element::kInt16;
    case DType::kUInt16:
      return Element::kUInt16;
    case DType::kInt32:
      return Element::kInt32;
    case DType::kUInt32:
      return Element::kUInt32;
    case DType::kInt64:
      return Element::kInt64;
    case DType::kUInt64:
      return Element::kUInt64;
    case DType::kFloat64:
    case DType::kComplex128:
    case DType::kQ8:
    case DType::kNone:
      break;
  }
  return Element::kNone;
}

template <class Void>
DeviceArray device_array(const core::BasicOperand<Void>& x) {
  DeviceArray to;
  if (!x.given()) return to;
  to.data = x.data;
  for (int axis = 0; axis < x.batch_strides.rank(); ++axis) {
    to.batch[axis] = x.batch_strides[axis];
  }
  to.entry = x.entry_stride;
  to.head = x.head_stride;
  to.row = x.row_stride;
  to.col = x.col_stride;
  to.type = element_of(x.dtype);
  return to;
}

// Whether rows are contiguous and begin at multiples of `count` elements of `bytes` bytes.
bool has_vectors(const DeviceArray& x, int count, int bytes) {
  const auto fits = [&](std::int64_t stride) { return stride % count == 0; };
  return x.data != nullptr && x.col == 1 && fits(x.entry) && fits(x.head) && fits(x.row) &&
         std::all_of(std::begin(x.batch), std::end(x.batch), fits) &&
         reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(count * bytes) == 0;
}

template <class Void>
DeviceArray tile_array(const core::BasicOperand<Void>& x, Index width) {
  DeviceArray to = device_array(x);
  to.vectors = to.data == nullptr || (width % 8 == 0 && has_vectors(to, 8, 2));
  return to;
}

// A matrix with an element for each query and key: numbers, or integers of which those of one byte
// are read in vectors.
DeviceArray matrix_array(const Operand& x, Index Tk) {
  DeviceArray to = device_array(x);
  if (to.data == nullptr) return to;
  const auto bytes = static_cast<int>(size_of(x.dtype));
  const bool fits = is_real(x.dtype) || bytes == 1;
  to.vectors = fits && Tk % (16 / bytes) == 0 && has_vectors(to, 16 / bytes, bytes);
  return to;
}

// ---- masks --------------------------------------------------------------------------------------

// Adds each mask to the arguments, or says why it cannot.
struct AddMask {
  const Problem& p;
  ForwardArguments& to;
  const char* reason = nullptr;

  void operator()(const core::CausalMask&) { to.right = std::min<std::int64_t>(to.right, 0); }
  void operator()(const core::WindowMask& mask) {
    if (mask.window.left >= 0) to.left = std::min<std::int64_t>(to.left, mask.window.left);
    if (mask.window.right >= 0) to.right = std::min<std::int64_t>(to.right, mask.window.right);
  }
  void operator()(const core::KeepMask& mask) {
    if (to.keep.data != nullptr) reason = "more than one Keep";
    to.keep = matrix_array(mask.keep, p.Tk);
  }
  void operator()(const core::PaddingMask& mask) {
    if (to.padding.data != nullptr) reason = "more than one Padding";
    to.padding = device_array(mask.padding);
    to.padding.entry = mask.entry_stride;
  }
  void operator()(const core::LengthMask& mask) {
    for (DeviceArray& lengths : to.lengths) {
      if (lengths.data != nullptr) continue;
      lengths = device_array(mask.lengths);
      lengths.entry = mask.entry_stride;
      return;
    }
    reason = "more than two KeyLengths";
  }
  void operator()(const core::UserMask&) { reason = "user functions (mask_mod)"; }
};

const char* add_masks(const Problem& p, ForwardArguments& to) {
  AddMask add{p, to};
  for (const core::ResolvedMask& mask : p.masks) std::visit(add, mask);
  return add.reason;
}

// ---- options ------------------------------------------------------------------------------------

struct SetCorner {
  ForwardArguments& to;
  void operator()(const BottomRight&) const { to.corner = Corner::kBottomRight; }
  void operator()(const TopLeft&) const { to.corner = Corner::kGiven; }
  void operator()(const Offset& given) const {
    to.corner = Corner::kGiven;
    to.offset = given.o;
  }
  void operator()(const Offsets&) const { to.corner = Corner::kArray; }
};

bool needs_every(const ForwardArguments& a) {
  return a.bias.data != nullptr || a.keep.data != nullptr || a.padding.data != nullptr ||
         a.alibi.data != nullptr || a.softcap > 0 || a.drops || !(a.scale > 0);
}

// The first kernel of a list that the call fits.
const TileKernel& choose(std::span<const TileKernel> kernels, const Problem& p, bool every) {
  const Index width = std::max(p.Dk, p.E);
  for (const TileKernel& one : kernels) {
    if (one.dtype == p.dtype && one.width >= width && one.every == every) return one;
  }
  return kernels.front();  // not reached: forward_unsupported() has checked dtype and width
}

// Returns a result that the kernels do not have, or null.
const char* unsupported_result(const core::Results& results) {
  core::Results rest = results;
  rest.out = rest.lse = rest.row_max = rest.entropy = {};
  rest.columns.sums = rest.columns.value_sums = {};
  rest.weights.matrix = {};
  bool any = false;
  core::for_each_operand(
      rest, [&](const auto&, const core::ResultOperand& x) { any = any || x.given(); });
  if (any)
    return "results other than out, lse, row_max, entropy, column_sums, value_sums and weights";
  if (results.columns.indices.given() || results.weights.indices.given()) {
    return "results of listed queries";
  }
  return nullptr;
}

}  // namespace

std::string forward_unsupported(const Problem& p, const core::Results& results) {
  if (p.product != core::PairProduct::kDot) return "the additive score";
  if (p.dtype != DType::kBFloat16 && p.dtype != DType::kFloat16) {
    return text("q of ", name_of(p.dtype));
  }
  if (!p.query_maps.is_identity() || !p.key_maps.is_identity()) {
    return "input transforms (cosine and bilinear scores, QK-norm, rotary positions)";
  }
  if (p.paged()) return "keys in pages (block_tables)";
  if (!p.mods.empty()) return "user functions (mods)";
  if (std::max({p.Dq, p.Dk, p.E}) > kLargestWidth) {
    return text("more than ", kLargestWidth, " channels");
  }
  if (std::max({p.B, p.H, p.q_rows, p.k_rows}) > kLargestSize) {
    return "2^31 or more batch entries, heads or rows";
  }
  const char* result = unsupported_result(results);
  if (result != nullptr) return result;
  ForwardArguments masks;
  const char* reason = add_masks(p, masks);
  return reason == nullptr ? "" : reason;
}

ForwardLaunches forward_launches(const Problem& p, const core::Results& results) {
  ForwardLaunches launches;
  ForwardArguments& a = launches.arguments;
  a.q = tile_array(p.q, p.Dq);
  a.k = tile_array(p.k, p.Dk);
  a.v = tile_array(p.v, p.E);
  a.out = device_array(results.out);
  a.out.vectors = has_vectors(a.out, 2, 2);
  a.lse = device_array(results.lse);
  a.row_max = device_array(results.row_max);
  a.entropy = device_array(results.entropy);
  a.column_sums = device_array(results.columns.sums);
  a.value_sums = device_array(results.columns.value_sums);
  a.weights = device_array(results.weights.matrix);
  a.bias = matrix_array(p.bias, p.Tk);
  add_masks(p, a);
  a.offsets = device_array(p.offsets);
  a.alibi = device_array(p.alibi);
  a.sinks = device_array(p.sinks);
  a.starts_q = device_array(p.cu_seqlens_q);
  a.starts_k = device_array(p.cu_seqlens_k);
  a.batch_axes = p.batch.rank();
  for (int axis = 0; axis < p.batch.rank(); ++axis) {
    a.batch_sizes[axis] = static_cast<int>(p.batch[axis]);
  }
  a.B = static_cast<int>(p.B);
  a.H = static_cast<int>(p.H);
  a.G = static_cast<int>(p.G);
  a.value_heads = static_cast<int>(p.value_heads);
  a.Tq = static_cast<int>(p.q_rows);
  a.Tk = static_cast<int>(p.k_rows);
  a.D = static_cast<int>(p.Dk);
  a.E = static_cast<int>(p.E);
  a.scale = static_cast<float>(p.scale);
  a.softcap = static_cast<float>(p.softcap);
  std::visit(SetCorner{a}, p.diagonal);
  a.drops = p.dropout > 0;
  const core::DropoutRow dropout = p.dropout_mask.row(0, 0, 0);
  a.dropout_key[0] = dropout.key[0];
  a.dropout_key[1] = dropout.key[1];
  a.dropout_threshold = dropout.threshold;
  a.kept_scale = static_cast<float>(1 / (1 - p.dropout));

  const TileKernel& forward = choose(kForward, p, needs_every(a));
  const TileKernel& columns = choose(kSumColumns, p, true);
  const TileKernel& rows = choose(kInspectRows, p, true);
  const Index heads = p.H * (p.packed() ? 1 : p.B);
  const auto blocks_of = [&](Index count, Index size) {
    return p.packed() ? count / size + p.B : (count + size - 1) / size;
  };
  // Forward kernels and those of rows need not have equal blocks of queries.
  const auto launch = [&](const TileKernel& kernel, Index blocks) {
    if (blocks * heads > 0) launches.kernels.push_back({&kernel, blocks * heads});
  };
  a.key_blocks = static_cast<int>(blocks_of(p.k_rows, columns.keys));
  a.row_blocks = static_cast<int>(blocks_of(p.q_rows, forward.rows));
  a.inspected_blocks = static_cast<int>(blocks_of(p.q_rows, rows.rows));
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
