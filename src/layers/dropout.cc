// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>

#include <qkv/layers/dropout.h>

#include "backend/cpu/target.h"
#include "core/philox.h"
#include "core/shapes.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/packed.h"
#include "layers/row_kernels.h"
#include "layers/streams.h"

namespace qkv {
namespace {

constexpr std::string_view kDropoutForward = "DropoutLayer::forward";
constexpr std::string_view kDropoutBackward = "DropoutLayer::backward";

// Elements drawn at a time; they stay in the first-level cache.
constexpr Index kBlock = 1024;

// The factors of elements first .. first + kBlock - 1, first a multiple of kBlock: 0 or 1/(1-p).
template <class T>
class Factors {
 public:
  Factors(std::string_view function, const Dropout& dropout)
      : kernels_(dense::kernels_of<T>(attn::target_in_use(function)).dot),
        mask_(dropout.p, dropout.seed.value_or(0)),
        kept_(static_cast<T>(1 / (1 - dropout.p))) {}

  const T* draw(Index first) {
    // The words of the counter as for attention's dropout mask: b, h, i, j/4.
    const core::DropoutRow row =
        mask_.row(static_cast<Index>(layers::Stream::kDropout), 0, (first / 4) >> 32);
    factors_.fill(kept_);
    kernels_.drop(factors_.data(), row, first, kBlock);
    return factors_.data();
  }

 private:
  layers::RowKernels<T> kernels_;
  core::DropoutMask mask_;
  T kept_;
  alignas(64) std::array<T, kBlock> factors_{};
};

// A dropped element is 0 whatever it was, NaN too.
template <class T>
T scaled(T x, T factor) {
  return factor == 0 ? T(0) : x * factor;
}

template <class T>
void apply_contiguous(Factors<T>& factors, const T* from, T* to, Index count, Write write) {
  for (Index first = 0; first < count; first += kBlock) {
    const T* factor = factors.draw(first);
    const Index some = std::min(kBlock, count - first);
    const T* x = from + first;
    T* y = to + first;
    if (write == Write::kAccumulate) {
      for (Index n = 0; n < some; ++n) y[n] += scaled(x[n], factor[n]);
    } else {
      for (Index n = 0; n < some; ++n) y[n] = scaled(x[n], factor[n]);
    }
  }
}

template <class T>
void apply_strided(Factors<T>& factors, const ConstView& from, const View& to, Write write) {
  const T* x = from.as<T>();
  T* y = to.as<T>();
  const T* factor = nullptr;
  Index element = 0;
  core::for_each_offset<2>(from.shape(), {from.strides(), to.strides()},
                           [&](const auto& offset, const Dims&) {
                             if (element % kBlock == 0) factor = factors.draw(element);
                             const T value = scaled(x[offset[0]], factor[element % kBlock]);
                             T& target = y[offset[1]];
                             target = write == Write::kAccumulate ? target + value : value;
                             ++element;
                           });
}

// to = or += from times the factors that `dropout` draws.
template <class T>
void apply(std::string_view function, const Dropout& dropout, const ConstView& from, const View& to,
           Write write) {
  if (dropout.p == 0 && write == Write::kOverwrite) {
    if (from.data() != to.data()) copy(from, to);
    return;
  }
  Factors<T> factors(function, dropout);
  if (from.is_contiguous() && to.is_contiguous()) {
    apply_contiguous(factors, from.as<T>(), to.as<T>(), from.element_count(), write);
  } else {
    apply_strided(factors, from, to, write);
  }
}

void apply(std::string_view function, const Dropout& dropout, const ConstView& from, const View& to,
           Write write) {
  layers::dispatch(from.dtype(), [&]<class T>() { apply<T>(function, dropout, from, to, write); });
}

}  // namespace

DropoutLayer::DropoutLayer(double dropout)
    : dropout_(layers::checked_dropout("DropoutLayer", dropout)) {}

void DropoutLayer::forward(const ConstView& x, RunState& run, Saved& saved, const View& out) const {
  saved.dtype = DType::kNone;  // no backward pass if this one throws
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
