// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/frozen/arrays.h"

#include <limits>
#include <utility>
#include <vector>

#include "core/storage.h"

namespace qkv::test::frozen {

Order draw_order(Draw& draw) {
  constexpr Order kOrders[] = {Order::kC,       Order::kC,           Order::kC,
                               Order::kSwapped, Order::kEverySecond, Order::kBackwards};
  return draw.one_of(kOrders);
}

View lay_out(Tensor values, Order order, std::deque<Tensor>& tensors,
             std::set<std::string>& features) {
  const auto own = [&](Tensor tensor) -> View {
    tensors.push_back(std::move(tensor));
    return tensors.back();
  };
  const int rank = values.rank();
  if (order == Order::kC || values.element_count() == 0) return own(std::move(values));
  if (order == Order::kSwapped) {
    if (rank < 2) return own(std::move(values));
    const int axis = rank == 2 ? 0 : rank - 3;
    Dims swapped = values.shape();
    std::swap(swapped[axis], swapped[axis + 1]);
    const View view = transpose(own(Tensor(values.dtype(), swapped)), axis, axis + 1);
    copy(values, view);
    features.insert("[B,T,H,D] in memory");
    return view;
  }
  if (order == Order::kEverySecond) {
    Dims wider = values.shape();
    wider[rank - 1] *= 2;
    const View memory = own(Tensor(values.dtype(), wider));
    if (is_real(values.dtype())) fill(memory, std::numeric_limits<double>::quiet_NaN());
    const View view = slice(memory, -1, 0, wider[rank - 1], 2);
    copy(values, view);
    features.insert("every second channel");
    return view;
  }
  View view = own(Tensor(values.dtype(), values.shape()));
  for (int axis = 0; axis < rank; ++axis) view = slice(view, axis, view.size(axis) - 1, -1, -1);
  copy(values, view);
  features.insert("backwards in memory");
  return view;
}

Tensor whole_numbers(Draw& draw, DType dtype, const Dims& shape, Index low, Index high) {
  Tensor x(dtype, shape);
  for (Index n = 0; n < x.element_count(); ++n) {
    core::store(dtype, x.view().data(), n, static_cast<double>(draw.whole(low, high)));
  }
  return x;
}

void fill(const View& x, double value) { copy(convert(std::vector<double>{value}, x.dtype()), x); }

std::string described(const Inputs& inputs) {
  const DType dtype = inputs.q.dtype();
  const DType keys = inputs.k.dtype();
  std::string text(name_of(dtype));
  if (keys != dtype) text += "/" + std::string(name_of(keys));
  for (const auto& [letter, x] : {std::pair("q", inputs.q), {"k", inputs.k}, {"v", inputs.v}}) {
    if (x.given()) text += " " + (letter + to_string(x.shape()));
  }
  return text;
}

}  // namespace qkv::test::frozen
