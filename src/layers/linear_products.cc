// SPDX-License-Identifier: Apache-2.0
#include "layers/linear_products.h"

#include <algorithm>
#include <span>

#include "core/integers.h"
#include "core/order.h"
#include "core/stop.h"
#include "core/storage.h"
#include "dense/panels.h"
#include "dense/rows.h"
#include "layers/packed.h"
#include "runtime/tasks.h"

namespace qkv::layers {
namespace {

using core::kGradientBlock;
using dense::Kernels;
using dense::Rows;
using dense::RowsOf;
using runtime::Arena;
using runtime::Call;

constexpr Index kMostRows = 192;             // per task; no weight is packed whole for so few rows
constexpr Index kLeastRows = 48;             // per task: eight tiles, worth reading a panel for
constexpr Index kColumnsPerTask = 256;       // four panels
constexpr Index kMostGradientColumns = 192;  // columns of dy in a task of the parameters' gradients
constexpr Index kLeastGradientColumns = 24;  // four tiles
constexpr Index kGradientNumbers = 128 << 10;  // elements of dW in a task: they fit in the caches

// Rows of an input, evenly spaced and with contiguous channels: in place, or copied.
template <class T>
class EvenRows {
 public:
  explicit EvenRows(const ConstView& view) {
    Rows<const T> rows(view);
    if (rows.count() > 0 && !rows.even()) {
      copy_ = contiguous(view);
      rows = Rows<const T>(copy_.view());
    }
    count = rows.count();
    channels = rows.channels();
    all = rows.from(0);
  }
  RowsOf<const T> from(Index row, Index column = 0) const {
    return {all.data + row * all.stride + column, all.stride};
  }

  Index count = 0;
  Index channels = 0;

 private:
  RowsOf<const T> all{};
  Tensor copy_{};
};

// Rows of a result, written in place, or to a buffer and then by put() to the result.
template <class T>
class ResultRows {
 public:
  ResultRows(const View& view, Write write) : view_(view), write_(write) {
    const Rows<T> rows(view);
    count = rows.count();
    channels = rows.channels();
    if (write == Write::kOverwrite && rows.even()) {
      all_ = rows.from(0);
    } else {
      buffer_ = Tensor(view.dtype(), {count, channels});
      all_ = {buffer_.values<T>().data(), channels};
    }
  }
  RowsOf<T> from(Index row, Index column = 0) const {
    return {all_.data + row * all_.stride + column, all_.stride};
  }
  // Writes the buffer to the result, after all rows have been computed.
  void put() const {
    if (!buffer_.given()) return;
    const Rows<T> rows(view_);
    for (Index r = 0; r < count; ++r) {
      T* const to = rows.row(r);
      const T* const sums = all_.data + r * channels;
      for (Index c = 0; c < channels; ++c) {
        T& target = to[c * rows.stride()];
        target = write_ == Write::kAccumulate ? target + sums[c] : sums[c];
      }
    }
  }

  Index count = 0;
  Index channels = 0;

 private:
  View view_;
  Write write_;
  Tensor buffer_{};
  RowsOf<T> all_{};
};

// Returns the number of rows per task, kLeastRows to kMostRows: as many as leave each worker some
// tasks, where `across` tasks share the columns of the same rows.
Index rows_per_task(const Call& call, Index rows, Index across) {
  constexpr Index kTasks = 4;
  for (Index some = kMostRows; some > kLeastRows; some /= 2) {
    if (call.concurrency() == 1 ||
        core::divide_up(rows, some) * across >= kTasks * call.concurrency()) {
      return some;
    }
  }
  return kLeastRows;
}

// Calls f(first row, rows, first column, columns, arena) for blocks that cover [rows,columns].
// Blocks of the same columns are consecutive.
template <class F>
void for_each_block(Call& call, Index rows, Index columns, const F& f) {
  const Index across = core::divide_up(columns, kColumnsPerTask);
  const Index each = rows_per_task(call, rows, across);
  const Index down = core::divide_up(rows, each);
  call.for_each_task(down * across, [&](Index task, Arena& arena) {
    const Index row = task % down * each;
    const Index column = task / down * kColumnsPerTask;
    f(row, std::min(each, rows - row), column, std::min(kColumnsPerTask, columns - column), arena);
  });
}

template <class T>
const T* values_or_null(const Tensor& tensor) {
  return tensor.given() ? tensor.values<T>().data() : nullptr;
}

// Computes y[r,o] = sum_i x[r,i] W[o,i] + b[o].
template <class T>
void forward(Call& call, const Kernels<T>& by, const ConstView& x_view, const dense::Panels<T>& w,
             const T* bias, const View& y_view, Write write = Write::kOverwrite) {
  const EvenRows<T> x(x_view);
  const ResultRows<T> y(y_view, write);
  const core::StopPoint stop = call.stop_point();
  const auto block = [&](Index r, Index rows, Index o, Index columns, Arena&) {
    const dense::Panels<T> some{columns, w.inputs, w.data + o * w.inputs};
    dense::multiply(by, x.from(r), rows, some, bias == nullptr ? nullptr : bias + o, y.from(r, o),
                    stop);
  };
  for_each_block(call, y.count, y.channels, block);
  y.put();
}

// Computes forward() of few rows with an unpacked weight: a task packs a panel when it needs it.
template <class T>
void forward_few_rows(Call& call, const Kernels<T>& by, const ConstView& x_view,
                      const LinearPair& p, const View& y_view) {
  const EvenRows<T> x(x_view);
  const ResultRows<T> y(y_view, Write::kOverwrite);
  if (y.count == 0) return;  // y may be a null pointer
  const T* const weight = p.weight.values<T>().data();
  const T* const bias = values_or_null<T>(p.bias);
  const core::StopPoint stop = call.stop_point();
  call.for_each_task(core::divide_up(y.channels, dense::kPanel), [&](Index panel, Arena& arena) {
    const Index o = panel * dense::kPanel;
    const Index columns = std::min(dense::kPanel, y.channels - o);
    T* const data = arena.take<T>(dense::kPanel * x.channels).data();
    dense::pack_panel<T>(by, {weight + o * x.channels, x.channels}, columns, x.channels, 0, data);
    dense::multiply(by, x.from(0), x.count, {columns, x.channels, data},
                    bias == nullptr ? nullptr : bias + o, y.from(0, o), stop);
  });
  y.put();
}

// Computes dx[r,i] = sum_o dy[r,o] W[o,i] for few rows.
template <class T>
void backward_few_rows(Call& call, const Kernels<T>& by, const ConstView& dy_view,
                       const LinearPair& p, const View& dx_view, Write write) {
  const EvenRows<T> dy(dy_view);
  const ResultRows<T> dx(dx_view, write);
  if (dx.count == 0) return;  // dx may be a null pointer
  const T* const weight = p.weight.values<T>().data();
  const core::StopPoint stop = call.stop_point();
  call.for_each_task(core::divide_up(dx.channels, dense::kPanel), [&](Index panel, Arena& arena) {
    const Index i = panel * dense::kPanel;
    const Index columns = std::min(dense::kPanel, dx.channels - i);
    const RowsOf<const T> w{weight + i, dx.channels};
    const RowsOf<T> to = dx.from(0, i);
    if (dx.count >= dense::kCopyRows) {
      T* const scratch = arena.take<T>(dense::kCopyNumbers).data();
      dense::multiply_by_copies(by, dy.from(0), dx.count, dy.channels, w, columns, to, scratch,
                                stop);
      return;
    }
    dense::product(by, dy.from(0), dx.count, dy.channels, w, columns, to, stop);
  });
  dx.put();
}

// The arrays and options that the tasks of the parameters' gradients share.
template <class T>
struct ParameterSums {
  Kernels<T> by;
  const EvenRows<T>& x;
  const EvenRows<T>& dy;
  // For each block of kGradientBlock rows of x: whether the block is finite, and if so its copy by
  // dense::copy_to_panels, computed once for all tasks. `finite` is null if each task checks x
  // itself, `panels` if each task copies x itself or no task reads copies.
  const char* finite;
  const T* panels;
  bool by_panels;  // dW is computed panel by panel
  bool copies;     // tiles read copies of x
  Write write;
  core::StopPoint stop;

  // Returns whether the block of x from `row` on is finite. If it is, copies it to `to` unless
  // null.
  bool copy_if_finite(Index row, T* to) const {
    const Index rows = std::min(kGradientBlock, x.count - row);
    if (!dense::all_finite(by, x.from(row), rows, x.channels)) return false;
    if (to != nullptr) dense::copy_to_panels(x.from(row), rows, x.channels, to);
    return true;
  }
  // Calls f(block, first row, rows) for all blocks, ascending.
  template <class F>
  void for_each_row_block(const F& f) const {
    for (Index row = 0; row < dy.count; row += kGradientBlock) {
      stop();
      f(row / kGradientBlock, row, std::min(kGradientBlock, dy.count - row));
    }
  }
  // Computes dW[o,i] = sum_r dy[r,o] x[r,i] for `columns` columns of dy from o on. Blocks of r are
  // added one by one.
  void weight(Index o, Index columns, T* target, Arena& arena) const {
    const Index width = x.channels;
    const RowsOf<T> to{target + o * width, width};
    T* const scratch = arena.take<T>(dense::transposed_product_scratch(columns, width)).data();
    T* const copy =
        copies && panels == nullptr ? arena.take<T>(kGradientBlock * width).data() : nullptr;
    // A non-finite number in x shows in the sums, even where dy is 0. If the sums are fewer
    // numbers than x and can be computed again, the sums are checked instead of x.
    const bool sums_show = by_panels && write == Write::kOverwrite && finite == nullptr;
    if (sums_show && columns < x.count) {
      add_blocks<false>(o, columns, to, copy, scratch);
      if (dense::all_finite<T>(by, {to.data, width}, columns, width)) return;
    }
    add_blocks<true>(o, columns, to, copy, scratch);
  }
  template <bool kChecks>
  void add_blocks(Index o, Index columns, const RowsOf<T>& to, T* copy, T* scratch) const {
    const Index width = x.channels;
    if (dy.count == 0 && write == Write::kOverwrite) std::fill_n(to.data, columns * width, T(0));
    for_each_row_block([&](Index block, Index row, Index rows) {
      bool is_finite = true;
      if (finite != nullptr) {
        is_finite = finite[block] != 0;
      } else if (kChecks) {
        is_finite = copy_if_finite(row, copy);
      } else if (copy != nullptr) {
        dense::copy_to_panels(x.from(row), rows, width, copy);
      }
      const bool adds = row > 0 || write == Write::kAccumulate;
      if (by_panels && is_finite) {
        const T* const copied = panels == nullptr ? copy : panels + row * width;
        dense::transposed_product_of_panels(by, dy.from(row, o), columns, {x.from(row), copied},
                                            rows, width, adds, to, scratch);
      } else {
        if (!adds) std::fill_n(to.data, columns * width, T(0));
        dense::add_transposed_product(by, dy.from(row, o), columns, x.from(row), rows, width,
                                      is_finite, to, scratch);
      }
    });
  }
  // Computes db[o] = sum_r dy[r,o], in blocks of r that are added one by one.
  void bias(Index o, Index columns, T* target, Arena& arena) const {
    const std::span<T> block_sums = arena.take<T>(columns);
    if (write == Write::kOverwrite) std::fill_n(target + o, columns, T(0));
    for_each_row_block([&](Index, Index row, Index rows) {
      std::fill(block_sums.begin(), block_sums.end(), T(0));
      const RowsOf<const T> from = dy.from(row, o);
      for (Index r = 0; r < rows; ++r) {
        const T* const dy_row = from.data + r * from.stride;
        if (by.given()) {
          by.gradient->add(block_sums.data(), dy_row, columns);
        } else {
          for (std::size_t n = 0; n < block_sums.size(); ++n) block_sums[n] += dy_row[n];
        }
      }
      for (std::size_t n = 0; n < block_sums.size(); ++n) {
        target[o + static_cast<Index>(n)] += block_sums[n];
      }
    });
  }
};

// Returns the number of columns of dy per task, in whole tiles, so that workers get equal shares.
Index gradient_columns(const Context& context, Index columns, Index width) {
  const Index most =
      std::clamp(kGradientNumbers / width, kLeastGradientColumns, kMostGradientColumns);
  const Index workers = context.executor().concurrency();
  const Index tasks = core::divide_up(core::divide_up(columns, most), workers) * workers;
  const Index tiles = core::divide_up(core::divide_up(columns, tasks), kernels::kTileRows);
  return std::max(kLeastGradientColumns, tiles * kernels::kTileRows);
}

template <class T>
void backward_parameters(Context& context, std::string_view function, const ConstView& x_view,
                         const ConstView& dy_view, const LinearGradientViews& gradients,
                         Write write) {
  const EvenRows<T> x(x_view);
  const EvenRows<T> dy(dy_view);
  const Kernels<T> by = kernels_in_use<T>(context, function);
  const Index blocks = core::divide_up(dy.count, kGradientBlock);
  const Index each = gradient_columns(context, dy.channels, x.channels);
  const Index tasks = core::divide_up(dy.channels, each);
  const Index columns = std::min(each, dy.channels);
  const bool by_panels = by.given() && columns >= dense::kStripColumns;
  const bool copies = by_panels && x.count > 0 && dense::reads_copies<T>(x.from(0).stride);
  // With more tasks than workers, the tasks share the checks and copies of x.
  const bool shared = gradients.weight.given() && tasks > context.executor().concurrency();
  const Index copied = shared && copies ? x.count * x.channels : 0;
  const Index copy = copies && !shared ? kGradientBlock * x.channels : 0;
  Call call(context, function, Arena::cost<char>(blocks) + Arena::cost<T>(copied),
            Arena::cost<T>(copy) +
                Arena::cost<T>(dense::transposed_product_scratch(columns, x.channels)) +
                Arena::cost<T>(columns));
  char* const finite = shared ? call.shared().take<char>(blocks).data() : nullptr;
  T* const panels = copied > 0 ? call.shared().take<T>(copied).data() : nullptr;
  const ParameterSums<T> sums{by,        x,      dy,    finite,           panels,
                              by_panels, copies, write, call.stop_point()};
  T* const weight = gradients.weight.given() ? gradients.weight.as<T>() : nullptr;
  T* const bias = gradients.bias.given() ? gradients.bias.as<T>() : nullptr;
  if (shared) {
    call.for_each_task(blocks, [&](Index block, Arena&) {
      const Index row = block * kGradientBlock;
      finite[block] = static_cast<char>(
          sums.copy_if_finite(row, panels == nullptr ? nullptr : panels + row * x.channels));
    });
  }
  call.for_each_task(tasks, [&](Index task, Arena& arena) {
    const Index o = task * each;
    const Index some = std::min(each, dy.channels - o);
    if (weight != nullptr) sums.weight(o, some, weight, arena);
    if (bias != nullptr) sums.bias(o, some, bias, arena);
  });
}

}  // namespace

template <class T>
void pack(Call& call, const Kernels<T>& by, const Tensor& weight, T* panels) {
  const Index outputs = weight.size(0);
  const Index inputs = weight.size(1);
  const RowsOf<const T> rows{weight.values<T>().data(), inputs};
  call.for_each_task(core::divide_up(outputs, dense::kPanel), [&](Index panel, Arena&) {
    dense::pack_panel(by, rows, outputs, inputs, panel, panels);
  });
}
template void pack(Call&, const Kernels<float>&, const Tensor&, float*);
template void pack(Call&, const Kernels<double>&, const Tensor&, double*);

template <class T>
void pack_transposed(Call& call, const Tensor& weight, T* panels) {
  const Index outputs = weight.size(0);
  const Index inputs = weight.size(1);
  const RowsOf<const T> w{weight.values<T>().data(), inputs};
  call.for_each_task(core::divide_up(inputs, dense::kPanel), [&](Index panel, Arena&) {
    dense::copy_panel(w, outputs, inputs, panel, panels);
  });
}
template void pack_transposed(Call&, const Tensor&, float*);
template void pack_transposed(Call&, const Tensor&, double*);

void linear_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const View& y, Context& context) {
  core::dispatch(x.dtype(), [&]<class T>() {
    const Index outputs = p.weight.size(0);
    const Index inputs = p.weight.size(1);
    const Kernels<T> by = kernels_in_use<T>(context, function);
    if (x.element_count() <= kMostRows * inputs) {
      Call call(context, function, 0, Arena::cost<T>(dense::kPanel * inputs));
      forward_few_rows<T>(call, by, x, p, y);
      return;
    }
    const Index size = dense::Panels<T>::size(outputs, inputs);
    Call call(context, function, Arena::cost<T>(size), 0);
    const std::span<T> panels = call.shared().take<T>(size);
    pack(call, by, p.weight, panels.data());
    forward<T>(call, by, x, {outputs, inputs, panels.data()}, values_or_null<T>(p.bias), y);
  });
}

void packed_forward(std::string_view function, const ConstView& x, const LinearPair& p,
                    const Tensor& panels, const View& y, Context& context) {
  core::dispatch(x.dtype(), [&]<class T>() {
    Call call(context, function, 0, 0);
    forward<T>(call, kernels_in_use<T>(context, function), x,
               {p.weight.size(0), p.weight.size(1), panels.values<T>().data()},
               values_or_null<T>(p.bias), y);
  });
}

void linear_backward_input(std::string_view function, const ConstView& dy, const LinearPair& p,
                           const View& dx, Write write, Context& context) {
  core::dispatch(dx.dtype(), [&]<class T>() {
    const Kernels<T> by = kernels_in_use<T>(context, function);
    const Index outputs = p.weight.size(0);
    const Index inputs = p.weight.size(1);
    if (dx.element_count() <= kMostRows * inputs) {
      Call call(context, function, 0, Arena::cost<T>(dense::kCopyNumbers));
      backward_few_rows<T>(call, by, dy, p, dx, write);
      return;
    }
    const Index size = dense::Panels<T>::size(inputs, outputs);
    Call call(context, function, Arena::cost<T>(size), 0);
    T* const panels = call.shared().take<T>(size).data();
    pack_transposed(call, p.weight, panels);
    // The product dx = dy W is the forward pass of a layer with the transposed weight.
    forward<T>(call, by, dy, {inputs, outputs, panels}, nullptr, dx, write);
  });
}

void pack_backward(std::string_view function, const Tensor& weight, Tensor& panels,
                   Context& context) {
  panels = Tensor(weight.dtype(), {dense::Panels<float>::size(weight.size(1), weight.size(0))});
  core::dispatch(weight.dtype(), [&]<class T>() {
    Call call(context, function, 0, 0);
    pack_transposed(call, weight, panels.values<T>().data());
  });
}

void packed_backward_input(std::string_view function, const ConstView& dy, const Tensor& panels,
                           const View& dx, Write write, Context& context) {
  core::dispatch(dx.dtype(), [&]<class T>() {
    Call call(context, function, 0, 0);
    forward<T>(call, kernels_in_use<T>(context, function), dy,
               {dx.size(-1), dy.size(-1), panels.values<T>().data()}, nullptr, dx, write);
  });
}

void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                LinearParameters& gradients, Write write, Context& context) {
  linear_backward_parameters(function, x, dy, LinearGradientViews{gradients.weight, gradients.bias},
                             write, context);
}

void linear_backward_parameters(std::string_view function, const ConstView& x, const ConstView& dy,
                                const LinearGradientViews& gradients, Write write,
                                Context& context) {
  if (!gradients.weight.given() && !gradients.bias.given()) return;
  core::dispatch(x.dtype(), [&]<class T>() {
    backward_parameters<T>(context, function, x, dy, gradients, write);
  });
}

}  // namespace qkv::layers
