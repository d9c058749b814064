// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string_view>

#include <qkv/error.h>
#include <qkv/q8.h>

#include "core/message.h"
#include "core/overlap.h"
#include "core/shapes.h"
#include "core/stop.h"
#include "core/storage.h"
#include "dense/quantize_q8.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

using core::text;

constexpr Index kNumbers = BlockQ8::kNumbers;
constexpr std::string_view kQuantize = "quantize_q8";
constexpr std::string_view kDequantize = "dequantize_q8";

// Checks an array of numbers and one of blocks: the last axis of `blocks` must be a 32nd of the
// last axis of `numbers`.
void check(std::string_view function, const ConstView& numbers, const char* numbers_name,
           const ConstView& blocks, const char* blocks_name) {
  if (blocks.dtype() != DType::kQ8) {
    throw Error(function, blocks_name, text("must be q8, got ", describe(blocks)),
                ErrorKind::kType);
  }
  if (numbers.rank() < 1 || numbers.size(-1) % kNumbers != 0) {
    throw Error(function, numbers_name,
                text("must have a last axis of a multiple of 32, got ", describe(numbers)));
  }
  Dims wanted = numbers.shape();
  wanted[wanted.rank() - 1] /= kNumbers;
  if (!(blocks.shape() == wanted)) {
    throw Error(function, blocks_name,
                text("must have the shape [..,D/32] = ", to_string(wanted), " where ", numbers_name,
                     " is [..,D] = ", to_string(numbers.shape()), ", got ", describe(blocks)));
  }
  if (core::may_overlap(numbers, blocks)) {
    throw Error(function, "to",
                text("must not share memory with x (", core::shown(numbers_name, numbers), ", ",
                     core::shown(blocks_name, blocks), ")"));
  }
}

void check_distinct_elements(std::string_view function, const View& to) {
  if (!core::self_overlaps(to)) return;
  throw Error(function, "to",
              text("must not overlap itself, got ", describe(to), " with strides ",
                   to_string(to.strides())));
}

// Calls f(offset of the block's first number, offset of the block) for each block, in C order.
template <class F>
void for_each_block(const ConstView& numbers, const ConstView& blocks, const core::StopPoint& stop,
                    const F& f) {
  Dims strides = numbers.strides();
  Index& along_row = strides[strides.rank() - 1];
  // With one block or none the stride is not used, and may be too large to be multiplied.
  along_row = blocks.size(-1) < 2 ? 0 : along_row * kNumbers;
  constexpr Index kBlocksBetweenStops = core::kStepsBetweenStops / kNumbers;
  Index done = 0;
  core::for_each_offset<2>(blocks.shape(), {strides, blocks.strides()},
                           [&](const auto& offsets, const Dims&) {
                             if (done++ % kBlocksBetweenStops == 0) stop();
                             f(offsets[0], offsets[1]);
                           });
}

// Quantises one block as ggml's quantize_row_q8_0_ref does, but if the scale rounds to 0, all
// values are 0, where ggml's may be undefined. Returns false if no block can hold the numbers.
bool quantize(const float* x, BlockQ8& to) {
  float most = 0;
  bool finite = true;
  for (Index n = 0; n < kNumbers; ++n) {
    most = std::max(most, std::fabs(x[n]));
    finite = finite && std::isfinite(x[n]);
  }
  const float step = most / 127.0F;
  to.scale = core::from_float<Float16>(step);
  if (!finite || !std::isfinite(core::to_float(to.scale))) return false;
  if (core::to_float(to.scale) == 0) {
    std::fill_n(to.values, kNumbers, std::int8_t{0});
    return true;
  }
  const float factor = 1.0F / step;
  for (Index n = 0; n < kNumbers; ++n) {
    to.values[n] = static_cast<std::int8_t>(std::round(x[n] * factor));
  }
  return true;
}

}  // namespace

void dense::quantize_q8(std::string_view function, const char* name, const ConstView& x,
                        const core::StopPoint& stop, const View& to) {
  BlockQ8* blocks = to.as<BlockQ8>();
  for_each_block(x, to, stop, [&](Index from, Index block) {
    float numbers[kNumbers];
    for (Index n = 0; n < kNumbers; ++n) {
      numbers[n] = core::load<float>(x.dtype(), x.data(), from + n * x.stride(-1));
    }
    if (quantize(numbers, blocks[block])) return;
    const auto* refused = std::find_if(std::begin(numbers), std::end(numbers), [](float number) {
      return !(std::fabs(number) / 127.0F < 65520.0F);
    });
    throw Error(function, name,
                text("must hold numbers between -65520 * 127 and 65520 * 127, got ", *refused,
                     " in ", describe(x)));
  });
}

namespace {

void checked_quantize(const ConstView& x, const View& to, const core::StopPoint& stop) {
  if (!x.given()) throw Error(kQuantize, "x", "is absent");
  if (!to.given()) throw Error(kQuantize, "to", "is absent");
  if (!is_real(x.dtype()) || x.dtype() == DType::kFloat64) {
    throw Error(kQuantize, "x", text("must be float32, bfloat16 or float16, got ", describe(x)),
                ErrorKind::kType);
  }
  check(kQuantize, x, "x", to, "to");
  check_distinct_elements(kQuantize, to);
  dense::quantize_q8(kQuantize, "x", x, stop, to);
}

void checked_dequantize(const ConstView& x, const View& to, const core::StopPoint& stop) {
  if (!x.given()) throw Error(kDequantize, "x", "is absent");
  if (!to.given()) throw Error(kDequantize, "to", "is absent");
  if (to.dtype() != DType::kFloat32) {
    throw Error(kDequantize, "to", text("must be float32, got ", describe(to)), ErrorKind::kType);
  }
  check(kDequantize, to, "to", x, "x");
  check_distinct_elements(kDequantize, to);
  auto* numbers = to.as<float>();
  for_each_block(to, x, stop, [&](Index first, Index block) {
    for (Index n = 0; n < kNumbers; ++n) {
      numbers[first + n * to.stride(-1)] = core::load_q8(x.data(), block * kNumbers + n);
    }
  });
}

}  // namespace

void quantize_q8(const ConstView& x, const View& to) { checked_quantize(x, to, {}); }

void quantize_q8(const ConstView& x, const View& to, Context& context) {
  checked_quantize(x, to, runtime::Call(context, kQuantize).stop_point());
}

void dequantize_q8(const ConstView& x, const View& to) { checked_dequantize(x, to, {}); }

void dequantize_q8(const ConstView& x, const View& to, Context& context) {
  checked_dequantize(x, to, runtime::Call(context, kDequantize).stop_point());
}

}  // namespace qkv
