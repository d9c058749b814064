// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <qkv/layers/dropout.h>

#include "core/philox.h"
#include "core/shapes.h"
#include "core/storage.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/packed.h"
#include "layers/row_kernels.h"
#include "layers/streams.h"

namespace qkv {
namespace {

constexpr std::string_view kDropoutForward = "DropoutLayer::forward";
constexpr std::string_view kDropoutBackward = "DropoutLayer::backward";

// The number of elements drawn at a time: few enough for the first-level cache.
constexpr Index kBlock = 1024;

// Draws the factors of elements: 0 or 1/(1-p).
template <class T>
class Factors {
 public:
  Factors(std::string_view function, const Dropout& dropout)
      : kernels_(dense::kernels_of<T>(dense::target_in_use(function)).dot),
        mask_(dropout.p, dropout.seed.value_or(0)),
        kept_factor_(static_cast<T>(1 / (1 - dropout.p))) {}

  // Returns the factors of elements first .. first + kBlock - 1. `first` is a multiple of kBlock.
  const T* draw(Index first) {
    // The counter has the words (j/4, i, h, b) of attention's dropout mask. Here j is the element,
    // i holds the upper half of j/4, and b is the stream.
    const core::DropoutRow row =
        mask_.row(static_cast<Index>(layers::Stream::kDropout), 0, (first / 4) >> 32);
    factors_.fill(kept_factor_);
    kernels_.drop(factors_.data(), row, first, kBlock);
    return factors_.data();
  }

 private:
  layers::RowKernels<T> kernels_;
  core::DropoutMask mask_;
  T kept_factor_;
  alignas(64) std::array<T, kBlock> factors_{};
};

// A dropped element is 0 whatever it was, even NaN. The product is computed in any case, so that
// loops become vector code without branches.
template <class T>
T scaled(T x, T factor) {
  const T product = x * factor;
  return factor == 0 ? T(0) : product;
}

// Elements to read, `from_stride` apart, and elements to write, `to_stride` apart.
template <class T>
struct Run {
  const T* from;
  Index from_stride;
  T* to;
  Index to_stride;
};

template <class T>
void apply_run(const T* factor, const Run<T>& run, Index count, Write write) {
  const auto [from, from_stride, to, to_stride] = run;
  if (from_stride != 1 || to_stride != 1) {
    for (Index n = 0; n < count; ++n) {
      const T value = scaled(from[n * from_stride], factor[n]);
      T& target = to[n * to_stride];
      target = write == Write::kAccumulate ? target + value : value;
    }
  } else if (write == Write::kAccumulate) {
    for (Index n = 0; n < count; ++n) to[n] += scaled(from[n], factor[n]);
  } else {
    for (Index n = 0; n < count; ++n) to[n] = scaled(from[n], factor[n]);
  }
}

// Applies the factors to all elements in C order: each call of apply() continues where the
// last call ended.
template <class T>
class InOrder {
 public:
  InOrder(Factors<T>& factors, Write write) : factors_(factors), write_(write) {}

  void apply(Run<T> run, Index count) {
    while (count > 0) {
      const Index at = element_ % kBlock;
      if (at == 0) block_ = factors_.draw(element_);
      const Index some = std::min(kBlock - at, count);
      apply_run(block_ + at, run, some, write_);
      run.from += some * run.from_stride;
      run.to += some * run.to_stride;
      element_ += some;
      count -= some;
    }
  }

 private:
  Factors<T>& factors_;
  Write write_;
  const T* block_ = nullptr;  // the factors of the block that contains element_
  Index element_ = 0;
};

template <class T>
void apply_all(Factors<T>& factors, const ConstView& from, const View& to, Write write) {
  InOrder<T> in_order(factors, write);
  const T* x = from.as<T>();
  T* y = to.as<T>();
  if (from.is_contiguous() && to.is_contiguous()) {
    in_order.apply({x, 1, y, 1}, from.element_count());
    return;
  }
  const int last = from.rank() - 1;
  const auto rows = [last](const Dims& dims) { return core::sub_dims(dims, 0, last); };
  core::for_each_offset<2>(rows(from.shape()), {rows(from.strides()), rows(to.strides())},
                           [&](const auto& offset, const Dims&) {
                             in_order.apply(
                                 {x + offset[0], from.stride(last), y + offset[1], to.stride(last)},
                                 from.size(last));
                           });
}

// Writes `from` times the factors of `dropout` to `to`, or adds it, as `write` says.
template <class T>
void apply(std::string_view function, const Dropout& dropout, const ConstView& from, const View& to,
           Write write) {
  if (dropout.p == 0 && write == Write::kOverwrite) {
    if (from.data() != to.data()) copy(from, to);
    return;
  }
  Factors<T> factors(function, dropout);
  apply_all(factors, from, to, write);
}

void apply(std::string_view function, const Dropout& dropout, const ConstView& from, const View& to,
           Write write) {
  core::dispatch(from.dtype(), [&]<class T>() { apply<T>(function, dropout, from, to, write); });
}

}  // namespace

DropoutLayer::DropoutLayer(double dropout)
    : dropout_(layers::checked_dropout("DropoutLayer", dropout)) {}

void DropoutLayer::forward(const ConstView& x, RunState& run, Saved& saved, const View& out) const {
  saved.dtype = DType::kNone;  // backward() refuses `saved` if this call throws
  layers::check_float(kDropoutForward, {"x", x});
  layers::check_same(kDropoutForward, {"out", out}, x.dtype(), x.shape());
  layers::check_apart_or_same(kDropoutForward, {"out", out}, {"x", x});
  saved.dropout = layers::dropout_of(dropout_, run);
  saved.shape = x.shape();
  apply(kDropoutForward, saved.dropout, x, out, Write::kOverwrite);
  saved.dtype = x.dtype();
  layers::advance(run);
}

void DropoutLayer::backward(const Saved& saved, const ConstView& dout, const View& dx,
                            Write write) const {
  if (saved.dtype == DType::kNone) {
    throw Error(kDropoutBackward, "saved", "must come from a forward pass");
  }
  layers::check_same(kDropoutBackward, {"dout", dout}, saved.dtype, saved.shape);
  layers::check_same(kDropoutBackward, {"dx", dx}, saved.dtype, saved.shape);
  if (write == Write::kOverwrite) {
    layers::check_apart_or_same(kDropoutBackward, {"dx", dx}, {"dout", dout});
  } else {
    layers::check_apart(kDropoutBackward, {"dx", dx}, {{"dout", dout}});
  }
  apply(kDropoutBackward, saved.dropout, dout, dx, write);
}

}  // namespace qkv
