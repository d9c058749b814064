// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

#include "core/order.h"
#include "core/stop.h"
#include "reference/matmul.h"
#include "runtime/tasks.h"

namespace qkv::layers {
namespace {

using runtime::Arena;
using runtime::Call;

constexpr Index kRowsPerTask = 16;  // enough work for a task, few enough rows to share a batch

// An array [..,C] as rows of C channels, counted in C order over the leading axes.
template <class T>
class Rows {
 public:
  template <class AnyView>
  explicit Rows(const AnyView& view)
      : data_(view.template as<std::remove_const_t<T>>()),
        shape_(view.shape()),
        strides_(view.strides()),
        axes_(view.rank() - 1) {
    for (int axis = 0; axis < axes_; ++axis) count_ *= shape_[axis];
  }
  Index count() const noexcept { return count_; }
  Index channels() const noexcept { return shape_[axes_]; }
  Index stride() const noexcept { return strides_[axes_]; }
  T* row(Index index) const noexcept {
    Index offset = 0;
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      offset += (index % shape_[axis]) * strides_[axis];
      index /= shape_[axis];
    }
    return data_ + offset;
  }

 private:
  T* data_;
  Dims shape_;
  Dims strides_;
  int axes_;
  Index count_ = 1;
};

// Calls f(row) for each row, in tasks of kRowsPerTask.
template <class F>
void for_each_row(Call& call, Index rows, const F& f) {
  call.for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, [&](Index task, Arena& arena) {
    const Index end = std::min(rows, (task + 1) * kRowsPerTask);
    for (Index row = task * kRowsPerTask; row < end; ++row) {
      arena.reset();
      f(row, arena);
    }
  });
}

template <class T>
void put(T& target, T value, Write write) {
  target = write == Write::kAccumulate ? target + value : value;
}

// y[r,o] = sum_i x[r,i] W[o,i] + b[o]
template <class T>
void forward(Call& call, const ConstView& x_view, const LinearParameters& p, const View& y_view) {
  const Rows<const T> x(x_view);
  const Rows<T> y(y_view);
  const T* weight = p.weight.values<T>().data();
  const T* bias = p.bias.given() ? p.bias.values<T>().data() : nullptr;
  const core::StopPoint stop = call.stop_point();
  for_each_row(call, y.count(), [&](Index r, Arena&) {
    const T* x_row = x.row(r);
    T* y_row = y.row(r);
    for (Index o = 0; o < y.channels(); ++o) {
      const T sum = reference::dot<T, T, T>(x.channels(), {x_row, x.stride()},
                                            {weight + o * x.channels(), 1}, stop);
      y_row[o * y.stride()] = bias == nullptr ? sum : sum + bias[o];
    }
  });
}

// dx[r,i] = sum_o dy[r,o] W[o,i]; undoes forward's sum over i.
template <class T>
void backward_input(Call& call, const ConstView& dy_view, const LinearParameters& p,
                    const View& dx_view, Write write) {
  const Rows<const T> dy(dy_view);
  const Rows<T> dx(dx_view);
  const T* weight = p.weight.values<T>().data();
  const core::StopPoint stop = call.stop_point();
  for_each_row(call, dx.count(), [&](Index r, Arena& arena) {
    const std::span<T> sums = arena.take<T>(dx.channels());
    std::fill(sums.begin(), sums.end(), T{0});
    const T* dy_row = dy.row(r);
    for (Index o = 0; o < dy.channels(); ++o) {
      stop();
      const T* weight_row = weight + o * dx.channels();
      const T slope = dy_row[o * dy.stride()];
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] = std::fma(slope, weight_row[i], sums[i]);
      }
    }
    T* dx_row = dx.row(r);
    for (Index i = 0; i < dx.channels(); ++i) {
      put(dx_row[i * dx.stride()], sums[static_cast<std::size_t>(i)], write);
    }
  });
}

// dW[o,i] = sum_r dy[r,o] x[r,i], for one o. In the arena.
template <class T>
std::span<const T> weight_gradient(const Rows<const T>& x, const Rows<const T>& dy, Index o,
                                   const core::StopPoint& stop, Arena& arena) {
  const std::span<T> total = arena.take<T>(x.channels());
  const std::span<T> block = arena.take<T>(x.channels());
  std::fill(total.begin(), total.end(), T{0});
  for (Index start = 0; start < x.count(); start += core::kGradientBlock) {
    std::fill(block.begin(), block.end(), T{0});
    const Index end = std::min(x.count(), start + core::kGradientBlock);
    for (Index r = start; r < end; ++r) {
      stop();
      const T* x_row = x.row(r);
      const T slope = dy.row(r)[o * dy.stride()];
      if (slope == 0) continue;  // adds an exact 0, also when the row of a masked key holds NaN
      for (Index i = 0; i < x.channels(); ++i) {
        T& sum = block[static_cast<std::size_t>(i)];
        sum = std::fma(slope, x_row[i * x.stride()], sum);
      }
    }
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += block[i];
  }
  return total;
}

// db[o] = sum_r dy[r,o]
template <class T>
T bias_gradient(const Rows<const T>& dy, Index o, const core::StopPoint& stop) {
  T total = 0;
  for (Index start = 0; start < dy.count(); start += core::kGradientBlock) {
    stop();
    const Index end = std::min(dy.count(), start + core::kGradientBlock);
    T block = 0;
    for (Index r = start; r < end; ++r) block += dy.row(r)[o * dy.stride()];
    total += block;
  }
  return total;
}

template <class T>
void backward_parameters(Call& call, const ConstView& x_view, const ConstView& dy_view,
                         LinearParameters& gradients, Write write) {
  const Rows<const T> x(x_view);
  const Rows<const T> dy(dy_view);
  T* weight = gradients.weight.given() ? gradients.weight.values<T>().data() : nullptr;
  T* bias = gradients.bias.given() ? gradients.bias.values<T>().data() : nullptr;
  const core::StopPoint stop = call.stop_point();
  call.for_each_task(dy.channels(), [&](Index o, Arena& arena) {
    if (weight != nullptr) {
      const std::span<const T> row = weight_gradient(x, dy, o, stop, arena);
      for (std::size_t i = 0; i < row.size(); ++i) {
        put(weight[o * x.channels() + static_cast<Index>(i)], row[i], write);
      }
    }
    if (bias != nullptr) put(bias[o], bias_gradient(dy, o, stop), write);
  });
}

// f.operator()<T>() for the dtype of the layer.
template <class F>
void dispatch(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

}  // namespace

void linear_forward(std::string_view function, const ConstView& x, const LinearParameters& p,
                    const View& y, Context& context) {
  Call call(context, function, 0, 0);
  dispatch(x.dtype(), [&]<class T>() { forward<T>(call, x, p, y); });
}

void linear_backward_input(std::string_view function, const ConstView& dy,
                           const LinearParameters& p, const View& dx, Write write,
                           Context& context) {
  dispatch(dx.dtype(), [&]<class T>() {
    Call call(context, function, 0, Arena::cost<T>(dx.size(-1)));
    backward_input<T>(call, dy, p, dx, write);
  });
}

void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                LinearParameters& gradients, Write write, Context& context) {
  if (!gradients.weight.given() && !gradients.bias.given()) return;
  dispatch(x.dtype(), [&]<class T>() {
    Call call(context, function, 0, 2 * Arena::cost<T>(x.size(-1)));
    backward_parameters<T>(call, x, dy, gradients, write);
  });
}

}  // namespace qkv::layers
