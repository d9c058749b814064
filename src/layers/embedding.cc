// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <span>

#include <qkv/layers/embedding.h>

#include "core/integers.h"
#include "core/message.h"
#include "core/storage.h"
#include "dense/rows.h"
#include "layers/checks.h"
#include "layers/gradients.h"
#include "layers/indices.h"
#include "layers/packed.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

using dense::Rows;
using runtime::Arena;
using runtime::Call;

constexpr std::string_view kEmbeddingForward = "Embedding::forward";
constexpr std::string_view kEmbeddingBackward = "Embedding::backward";

constexpr Index kRowsPerTask = 64;
// The number of columns of the table's gradient that one of several tasks computes: a cache line of
// float32.
constexpr Index kColumnsPerTask = 16;

Index tasks_of(Index count, Index per_task) { return core::divide_up(count, per_task); }

// Computes out[n,:] = weight[ids[n],:].
template <class T>
void look_up(Call& call, const Tensor& weight, std::span<const std::int64_t> ids,
             const View& out_view) {
  const Rows<T> out(out_view);
  const Index width = out.channels();
  const T* table = weight.values<T>().data();
  call.for_each_task(tasks_of(out.count(), kRowsPerTask), [&](Index task, Arena&) {
    const Index end = std::min(out.count(), (task + 1) * kRowsPerTask);
    for (Index n = task * kRowsPerTask; n < end; ++n) {
      const T* from = table + ids[static_cast<std::size_t>(n)] * width;
      T* to = out.row(n);
      if (out.stride() == 1) {
        std::copy_n(from, width, to);
      } else {
        for (Index c = 0; c < width; ++c) to[c * out.stride()] = from[c];
      }
    }
  });
}

// Computes dweight[ids[n],:] += dout[n,:], n ascending. Tasks divide the columns, not the rows, so
// that frequent tokens leave no worker idle and sums have one order. A single worker takes whole
// rows.
template <class T>
void add_rows(Call& call, std::span<const std::int64_t> ids, std::optional<Index> padding,
              const ConstView& dout_view, Tensor& gradient, Write write) {
  const Rows<const T> dout(dout_view);
  const Index width = dout.channels();
  T* table = gradient.values<T>().data();
  const Index per_task = call.concurrency() == 1 ? width : std::min(width, kColumnsPerTask);
  if (write == Write::kOverwrite && per_task == width)
    std::ranges::fill(gradient.values<T>(), T{0});
  call.for_each_task(tasks_of(width, per_task), [&](Index task, Arena&) {
    const Index begin = task * per_task;
    const Index count = std::min(width - begin, per_task);
    if (write == Write::kOverwrite && per_task < width) {
      for (Index token = 0; token < gradient.size(0); ++token) {
        std::fill_n(table + token * width + begin, count, T{0});
      }
    }
    for (Index n = 0; n < dout.count(); ++n) {
      const Index token = ids[static_cast<std::size_t>(n)];
      if (token == padding) continue;
      const T* from = dout.row(n) + begin * dout.stride();
      T* to = table + token * width + begin;
      if (dout.stride() == 1) {
        for (Index c = 0; c < count; ++c) to[c] += from[c];
      } else {
        for (Index c = 0; c < count; ++c) to[c] += from[c * dout.stride()];
      }
    }
  });
}

}  // namespace

Embedding::Embedding(Index tokens, Index width, std::optional<Index> padding, DType dtype)
    : padding_(padding) {
  constexpr std::string_view kName = "Embedding";
  layers::check_dtype(kName, dtype);
  layers::check_size(kName, "tokens", tokens);
  layers::check_size(kName, "width", width);
  layers::check_tensor(kName, "tokens or width", dtype, {tokens, width});
  if (padding && (*padding < 0 || *padding >= tokens)) {
    throw Error(kName, "padding", core::text("must lie in 0..", tokens - 1, ", got ", *padding));
  }
  parameters_.weight = Tensor(dtype, {tokens, width});
}

Embedding::Parameters Embedding::zero_gradients() const {
  return {layers::zeros_like(parameters_.weight)};
}

void Embedding::forward(const ConstView& ids, Saved& saved, const View& out,
                        Context& context) const {
  saved.tokens = 0;  // backward() refuses `saved` if this call throws
  if (ids.given() && ids.rank() == kMaxRank) {
    throw Error(kEmbeddingForward, "ids",
                core::text("must have rank 0 to ", kMaxRank - 1, ", got ", describe(ids)));
  }
  layers::copy_indices(kEmbeddingForward, {"ids", ids}, {tokens()}, saved.ids);
  const Tensor& weight = parameters_.weight;
  Dims shape = ids.shape();
  shape.push_back(width());
  layers::check_same(kEmbeddingForward, {"out", out}, weight.dtype(), shape);
  layers::check_apart(kEmbeddingForward, {"out", out}, {{"ids", ids}, {"weight", weight}});

  Call call(context, kEmbeddingForward, 0, 0);
  const std::span<const std::int64_t> rows = saved.ids.values<std::int64_t>();
  core::dispatch(weight.dtype(), [&]<class T>() { look_up<T>(call, weight, rows, out); });
  saved.tokens = tokens();
}

void Embedding::backward(const Saved& saved, const ConstView& dout, Parameters& gradients,
                         Write write, Context& context) const {
  if (saved.tokens != tokens()) {
    throw Error(kEmbeddingBackward, "saved", "must come from a forward pass of this layer");
  }
  const DType dtype = parameters_.weight.dtype();
  Dims shape = saved.ids.shape();
  shape.push_back(width());
  layers::check_same(kEmbeddingBackward, {"dout", dout}, dtype, shape);
  Tensor& gradient = gradients.weight;
  if (!gradient.given()) return;
  layers::check_gradient(kEmbeddingBackward, "gradients.weight", gradient, parameters_.weight);
  layers::check_apart(kEmbeddingBackward, {"gradients.weight", gradient}, {{"dout", dout}});

  Call call(context, kEmbeddingBackward, 0, 0);
  const std::span<const std::int64_t> ids = saved.ids.values<std::int64_t>();
  core::dispatch(dtype,
                 [&]<class T>() { add_rows<T>(call, ids, padding_, dout, gradient, write); });
}

}  // namespace qkv
