// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "commands/view/view.h"

namespace {

using qkv::ConstView;
using qkv::Dims;
using qkv::DType;
using qkv::Index;
using qkv::Tensor;

// One map [Tq,Tk] of maps [N,L,H,Tq,Tk], as a view.
ConstView map_of(const ConstView& maps, Index example, Index layer, Index head) {
  ConstView one = qkv::slice(maps, 0, example, example + 1);
  one = qkv::slice(one, 1, layer, layer + 1);
  one = qkv::slice(one, 2, head, head + 1);
  return {one.data(), one.dtype(), Dims(one.size(3), one.size(4)),
          Dims(one.stride(3), one.stride(4))};
}

// Copies the selected queries and keys of a map to `target`, runs of consecutive keys at once.
void gather(const ConstView& map, const Selection& selection, const qkv::View& target) {
  const std::vector<Index>& keys = selection.keys;
  for (std::size_t i = 0; i < selection.queries.size(); ++i) {
    const Index query = selection.queries[i];
    const ConstView row = qkv::slice(map, 0, query, query + 1);
    const qkv::View to = qkv::slice(target, 0, static_cast<Index>(i), static_cast<Index>(i) + 1);
    for (std::size_t n = 0; n < keys.size();) {
      std::size_t end = n + 1;
      while (end < keys.size() && keys[end] == keys[end - 1] + 1) ++end;
      qkv::copy(qkv::slice(row, 1, keys[n], keys[end - 1] + 1),
                qkv::slice(to, 1, static_cast<Index>(n), static_cast<Index>(end)));
      n = end;
    }
  }
}

Dims reduced_shape(const Tensor& maps, int axis) {
  Dims shape = maps.shape();
  shape[axis] = 1;
  return shape;
}

// Calls f(offset, offset in the reduced array) for each element of an array [L,H,Tq,Tk], with
// offsets in C order.
template <class F>
void for_each_reduced(const Dims& shape, int axis, const F& f) {
  const Index cells = shape[2] * shape[3];
  const Index heads = shape[1];
  for (Index map = 0; map < shape[0] * heads; ++map) {
    const Index into = axis == 0 ? map % heads : map / heads;
    for (Index cell = 0; cell < cells; ++cell) f(map * cells + cell, into * cells + cell);
  }
}

// The maximum of two numbers, or NaN if either is NaN.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace

Tensor gathered(const ConstView& maps, const Selection& selection) {
  Tensor result(
      maps.dtype(),
      {static_cast<Index>(selection.layers.size()), static_cast<Index>(selection.heads.size()),
       static_cast<Index>(selection.queries.size()), static_cast<Index>(selection.keys.size())});
  const Index heads = result.size(1);
  const qkv::View flat = qkv::reshape(result.view(), {-1, result.size(2), result.size(3)});
  for (Index map = 0; map < flat.size(0); ++map) {
    const qkv::View target =
        qkv::reshape(qkv::slice(flat, 0, map, map + 1), {flat.size(1), flat.size(2)});
    gather(map_of(maps, selection.example, selection.layers[static_cast<std::size_t>(map / heads)],
                  selection.heads[static_cast<std::size_t>(map % heads)]),
           selection, target);
  }
  return result;
}

Tensor reduced(const Tensor& maps, int axis, Statistic statistic) {
  const Tensor exact = qkv::convert(maps.view(), DType::kFloat64);
  Tensor result(DType::kFloat64, reduced_shape(maps, axis));
  const auto from = exact.values<double>();
  const auto to = result.values<double>();
  if (statistic == Statistic::kMaximum) std::fill(to.begin(), to.end(), -HUGE_VAL);
  for_each_reduced(maps.shape(), axis, [&](Index element, Index into) {
    const double value = from[static_cast<std::size_t>(element)];
    double& sum = to[static_cast<std::size_t>(into)];
    sum = statistic == Statistic::kMean ? sum + value : larger(sum, value);
  });
  if (statistic == Statistic::kMean) {
    for (double& sum : to) sum /= static_cast<double>(maps.size(axis));
  }
  if (maps.dtype() == DType::kFloat64) return result;
  return qkv::convert(result.view(), DType::kFloat32);
}

Tensor any_allowed(const Tensor& masks, int axis) {
  Tensor result(DType::kBool, reduced_shape(masks, axis));
  const auto from = masks.values<bool>();
  const auto to = result.values<bool>();
  for_each_reduced(masks.shape(), axis, [&](Index element, Index into) {
    bool& allowed = to[static_cast<std::size_t>(into)];
    allowed = allowed || from[static_cast<std::size_t>(element)];
  });
  return result;
}

Unseen unseen_weight(const qkv::app::AttentionFile& file, const Selection& selection,
                     const std::vector<Index>& unseen_keys) {
  Selection rest = selection;
  rest.keys = unseen_keys;
  const Tensor weights = qkv::convert(gathered(file.attn, rest).view(), DType::kFloat64);
  const auto values = weights.values<double>();
  const std::size_t keys = rest.keys.size();
  Unseen unseen;
  std::size_t rows = 0;
  for (std::size_t row = 0; row < values.size() / keys; ++row) {
    double sum = 0;
    for (std::size_t n = 0; n < keys; ++n) sum += values[row * keys + n];
    if (!std::isfinite(sum)) continue;  // another note reports rows with NaN or infinity
    unseen.mean += sum;
    unseen.most = std::max(unseen.most, sum);
    ++rows;
  }
  if (rows > 0) unseen.mean /= static_cast<double>(rows);
  return unseen;
}
