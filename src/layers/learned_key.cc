// SPDX-License-Identifier: Apache-2.0
#include "layers/learned_key.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/shapes.h"
#include "core/storage.h"
#include "layers/checks.h"
#include "layers/packed.h"

namespace qkv::layers {
namespace {

Dims with_last(const Dims& shape, Index size) {
  Dims result = shape;
  result[result.rank() - 1] = size;
  return result;
}

// Extends x [..,Tk] or [..,1] to [..,Tk+1], with `value` at the end of each row.
Tensor with_column(const ConstView& x, Index Tk, std::int64_t value) {
  const ConstView rows = x.rank() == 0 ? reshape(x, Dims(1)) : x;
  const int last = rows.rank() - 1;
  Tensor extended(x.dtype(), with_last(rows.shape(), Tk + 1));
  copy(broadcast_to(rows, with_last(rows.shape(), Tk)), slice(extended.view(), last, 0, Tk));
  const auto real = static_cast<double>(value);
  const Tensor behind =
      convert(is_real(x.dtype()) ? ConstView(&real, Dims()) : ConstView(&value, Dims()), x.dtype());
  copy(broadcast_to(behind, with_last(rows.shape(), 1)), slice(extended.view(), last, Tk, Tk + 1));
  return extended;
}

std::vector<Index> integers_of(const ConstView& x) {
  const Tensor converted = convert(x, DType::kInt64);
  const auto values = converted.values<Index>();
  return {values.begin(), values.end()};
}

// Returns the diagonal's offset for each batch entry, or one for all.
struct OffsetsOf {
  Index Tq, Tk;
  std::vector<Index> operator()(const BottomRight&) const { return {Tk - Tq}; }
  std::vector<Index> operator()(const TopLeft&) const { return {0}; }
  std::vector<Index> operator()(const Offset& offset) const { return {offset.o}; }
  std::vector<Index> operator()(const Offsets& offsets) const { return integers_of(offsets.o); }
};

// Returns a mask for a call that has one more key, key Tk, which the mask always allows. `held`
// owns the mask's arrays.
struct MaskWithLastKey {
  Index Tk;
  std::vector<Index> offsets;
  std::vector<Tensor>& held;

  Mask operator()(const Causal&) const { return (*this)(Window{-1, 0}); }
  Mask operator()(const Window& window) const {
    return mask_mod([last = Tk, o = offsets, window](At at) {
      const Index middle = at.i + o[o.size() == 1 ? 0 : static_cast<std::size_t>(at.b)];
      return at.j == last || ((window.left < 0 || middle - window.left <= at.j) &&
                              (window.right < 0 || at.j <= middle + window.right));
    });
  }
  Mask operator()(const Keep& mask) const {
    return Keep{held.emplace_back(with_column(mask.keep, Tk, 1)).view()};
  }
  Mask operator()(const Padding& mask) const {
    return Padding{held.emplace_back(with_column(mask.padding, Tk, 0)).view()};
  }
  Mask operator()(const KeyLengths& mask) const {
    const Index per_entry = mask.lengths.rank() == 2 ? mask.lengths.size(1) : 0;
    return mask_mod([last = Tk, lengths = integers_of(mask.lengths), per_entry](At at) {
      const Index n = per_entry == 0 ? at.b : at.b * per_entry + at.i;
      return at.j == last || at.j < lengths[static_cast<std::size_t>(n)];
    });
  }
  Mask operator()(const MaskMod&) const {
    throw Error("MultiHeadAttention::forward", "mask_mod",
                "is not available with bias_kv, whose learned key it does not know");
  }
};

}  // namespace

Tensor with_row(const Tensor& x, const Tensor& row) {
  const int axis = x.rank() - 2;
  const Index T = x.size(axis);
  Dims shape = x.shape();
  shape[axis] = T + 1;
  Tensor extended(x.dtype(), shape);
  copy(x, slice(extended.view(), axis, 0, T));
  shape[axis] = 1;
  copy(broadcast_to(row, shape), slice(extended.view(), axis, T, T + 1));
  return extended;
}

void write_or_add(const Tensor& from, const View& to, Write write) {
  if (write == Write::kOverwrite) return copy(from, to);
  Tensor sum = contiguous(to);
  core::dispatch(from.dtype(), [&]<class R>() {
    auto result = sum.values<R>();
    std::ranges::transform(result, from.values<R>(), result.begin(), std::plus<>());
  });
  copy(sum, to);
}

Tensor without_row(const Tensor& x, const View& row, Write write) {
  const int axis = x.rank() - 2;
  const Index T = x.size(axis) - 1;
  if (row.given()) {
    const Tensor rows = contiguous(slice(ConstView(x), axis, T, T + 1));
    Tensor sum(row.dtype(), row.shape());
    core::dispatch(x.dtype(), [&]<class R>() {
      const auto from = rows.values<R>();
      auto to = sum.values<R>();
      for (std::size_t n = 0; n < from.size(); ++n) to[n % to.size()] += from[n];
    });
    write_or_add(sum, row, write);
  }
  return contiguous(slice(ConstView(x), axis, 0, T));
}

void allow_learned_key(const Inputs& inputs, Options& options, std::vector<Tensor>& held,
                       Context& context) {
  const Plan check(inputs, options, context);
  if (!options.mods.empty()) {
    throw Error("MultiHeadAttention::forward", "score_mod",
                "is not available with bias_kv, whose learned key it does not know");
  }
  const Index Tq = inputs.q.size(-2), Tk = inputs.k.size(-2);
  held.clear();
  held.reserve(options.masks.size() + 1);  // so that views of its tensors stay valid
  const MaskWithLastKey extend{Tk, std::visit(OffsetsOf{Tq, Tk}, options.diagonal), held};
  for (Mask& mask : options.masks) mask = std::visit(extend, mask);
  options.diagonal = BottomRight{};
  if (options.bias.given()) {
    options.bias = held.emplace_back(with_column(options.bias, Tk, 0)).view();
  }
}

void give_bias_gradient(const Tensor& extended, const View& to, Write write) {
  const Index Tk = extended.size(-1) - 1;
  const bool summed = to.rank() == 0 || to.size(-1) != Tk;
  Tensor gradient(to.dtype(), to.shape());
  core::dispatch(extended.dtype(), [&]<class R>() {
    const auto from = extended.values<R>();
    auto result = gradient.values<R>();
    const auto row = static_cast<std::size_t>(Tk + 1);
    for (std::size_t n = 0; n < from.size(); ++n) {
      if (n % row + 1 == row) continue;  // the learned key's bias is a constant 0
      result[summed ? n / row : n - n / row] += from[n];
    }
  });
  write_or_add(gradient, to, write);
}

}  // namespace qkv::layers
