// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_arguments.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "core/message.h"

namespace qkv::cuda {
namespace {

using core::Operand;
using core::Problem;

// ---- arrays -------------------------------------------------------------------------------------

// Whether rows are contiguous and begin at multiples of `count` elements of `bytes` bytes.
bool has_vectors(const DeviceArray& x, int count, int bytes) {
  const auto fits = [&](std::int64_t stride) { return stride % count == 0; };
  return x.data != nullptr && x.col == 1 && fits(x.entry) && fits(x.head) && fits(x.row) &&
         std::all_of(std::begin(x.batch), std::end(x.batch), fits) &&
         reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(count * bytes) == 0;
}

// The array of a bias or Keep, with an element for each query and key: real numbers or integers.
// Integers of more than one byte are not read in vectors.
DeviceArray matrix_array(const Operand& x, Index Tk) {
  DeviceArray to = device_array(x);
  if (to.data == nullptr) return to;
  const auto bytes = static_cast<int>(size_of(x.dtype));
  const bool fits = is_real(x.dtype) || bytes == 1;
  to.vectors = fits && Tk % (16 / bytes) == 0 && has_vectors(to, 16 / bytes, bytes);
  return to;
}

// ---- masks --------------------------------------------------------------------------------------

// Adds a mask to the arguments, or sets `reason` to what the kernels do not support.
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

}  // namespace

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

DeviceArray read_in_tiles(const Operand& x, Index width) {
  DeviceArray to = device_array(x);
  to.vectors = to.data == nullptr;
  if (to.vectors) return to;
  const auto bytes = static_cast<int>(size_of(x.dtype));
  to.vectors = width % (16 / bytes) == 0 && has_vectors(to, 16 / bytes, bytes);
  return to;
}

DeviceArray written_in_tiles(const core::ResultOperand& x) {
  DeviceArray to = device_array(x);
  to.vectors = to.type == Element::kFloat32 ? has_vectors(to, 4, 4) : has_vectors(to, 2, 2);
  return to;
}

DeviceArray rows_in_c_order(const Problem& p, Index heads, Index rows, Index width) {
  DeviceArray x;
  x.col = 1;
  x.row = width;
  x.head = rows * width;
  x.entry = p.packed() ? 0 : heads * rows * width;  // packed: one entry for all sequences
  x.type = Element::kFloat32;
  return x;
}

bool any_given(core::Results results) {
  bool any = false;
  core::for_each_operand(
      results, [&](const auto&, const core::ResultOperand& x) { any = any || x.given(); });
  return any;
}

std::string options_unsupported(const Problem& p) {
  if (p.paged()) return "keys in pages (block_tables)";
  if (!p.mods.empty()) return "user functions (mods)";
  if (std::max({p.B, p.H, p.q_rows, p.k_rows}) > kLargestSize) {
    return core::text("more than ", kLargestSize, " batch entries, heads or rows");
  }
  ForwardArguments masks;
  const char* reason = add_masks(p, masks);
  return reason == nullptr ? "" : reason;
}

ForwardArguments forward_arguments(const Problem& p, const core::Results& results) {
  ForwardArguments a;
  a.q = read_in_tiles(p.q, p.Dq);
  a.k = read_in_tiles(p.k, p.Dk);
  a.v = read_in_tiles(p.v, p.E);
  a.out = written_in_tiles(results.out);
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
  a.scales_in_exponent = a.scale > 0 && a.scale <= 1;
  a.softcap = static_cast<float>(p.softcap);
  if (a.softcap > 0) a.twice_over_cap = 2 * kLog2E / a.softcap;
  std::visit(SetCorner{a}, p.diagonal);
  a.drops = p.dropout > 0;
  const core::DropoutRow dropout = p.dropout_mask.row(0, 0, 0);
  a.dropout_key[0] = dropout.key[0];
  a.dropout_key[1] = dropout.key[1];
  a.dropout_threshold = dropout.threshold;
  a.kept_scale = static_cast<float>(1 / (1 - p.dropout));
  return a;
}

Index entries_of(const Problem& p) { return p.packed() ? 1 : p.B; }

Index blocks_of(const Problem& p, Index rows, Index size) {
  return p.packed() ? rows / size + p.B : (rows + size - 1) / size;
}

}  // namespace qkv::cuda
