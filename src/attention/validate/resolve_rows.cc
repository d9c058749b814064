// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"
#include "core/message.h"

// Resolves the input transforms of q and k before the score (row maps): QK-norm and rotary
// positions.
namespace qkv::attn {
namespace {

using core::text;

// ---- QK-norm --------------------------------------------------------------------------------

void add_norm(const Problem& p, const QkNorm& norm, const char* name, const ConstView& gain,
              Index width, const char* letters, Index heads, const char* head_letter,
              core::RowMaps& to) {
  core::RmsRows map{.gain = {}, .eps = norm.eps};
  if (gain.given()) {
    map.gain = parameter_operand(p, name, gain, Dims(width), letters, heads, head_letter);
  }
  to.add(map);
}

void resolve_norm(const QkNorm& norm, Problem& p) {
  const bool narrow = p.accumulator == DType::kFloat32;
  if (!(norm.eps >= 0) || !std::isfinite(norm.eps)) {
    throw Error(p.function, "qk_norm.eps", text("must be finite and 0 or more, got ", norm.eps));
  }
  if (narrow && !std::isfinite(static_cast<float>(norm.eps))) {
    throw Error(p.function, "qk_norm.eps",
                text("must fit in float32, the type of the sums, got ", norm.eps));
  }
  add_norm(p, norm, "qk_norm.q", norm.q, p.Dq, "Dq", p.H, "H", p.query_maps);
  add_norm(p, norm, "qk_norm.k", norm.k, p.Dk, "Dk", p.G, "G", p.key_maps);
}

// ---- rotary positions -----------------------------------------------------------------------

// Largest absolute value of a position: up to it, positions are exact as float64.
constexpr Index kLargestPosition = Index{1} << 53;

Operand frequencies_of(const Problem& p, const ConstView& x, Index width) {
  if (!x.given()) return {};
  constexpr const char* kName = "rotary.frequencies";
  if (x.dtype() != DType::kFloat32 && x.dtype() != DType::kFloat64) {
    throw Error(p.function, kName, text("must be float32 or float64, got ", describe(x)),
                ErrorKind::kType);
  }
  if (x.shape() != Dims(width / 2)) {
    throw Error(p.function, kName,
                text("must have the shape [width/2] = ", to_string(Dims(width / 2)), ", got ",
                     describe(x)));
  }
  for (Index m = 0; m < width / 2; ++m) {
    const auto value = core::load<double>(x.dtype(), x.data(), m * x.stride(0));
    if (std::isfinite(value)) continue;
    throw Error(p.function, kName, text("must be finite, got ", value, " for pair ", m));
  }
  return plain_operand(p, x, 0, 0, x.stride(0));
}

// Resolves positions: [rows], or [B,rows] where B counts all batch axes.
Operand positions_of(const Problem& p, const char* name, const ConstView& x, Index rows,
                     const char* letters) {
  if (!x.given()) return {};
  expect_integer(p, name, x);
  const bool by_entry = x.rank() == 2 && !p.packed();
  if (x.shape() != (by_entry ? Dims(p.B, rows) : Dims(rows))) {
    std::string wanted = text("[", letters, "] = ", to_string(Dims(rows)));
    if (!p.packed()) wanted += text(" or [B,", letters, "] = ", to_string({p.B, rows}));
    throw Error(p.function, name, text("must have the shape ", wanted, ", got ", describe(x)));
  }
  const Index entry_stride = by_entry ? x.stride(0) : 0;
  const Index row_stride = x.stride(-1);
  for (Index b = 0; b < (by_entry ? p.B : 1); ++b) {
    p.stop();
    for (Index n = 0; n < rows; ++n) {
      p.stop();
      const Index offset = b * entry_stride + n * row_stride;
      const Index position = integer_at(x, offset);
      if (position >= -kLargestPosition && position <= kLargestPosition) continue;
      throw Error(p.function, name,
                  text("must be in -2^53 to 2^53, got ", integer_text(x, offset), " for row ", n,
                       by_entry ? text(" of batch entry ", b) : ""));
    }
  }
  Operand positions = plain_operand(p, x, 0, row_stride, 0);
  positions.entry_stride = entry_stride;
  return positions;
}

void resolve_rotary(const Rotary& rotary, Problem& p) {
  if (!(rotary.base > 0) || !std::isfinite(rotary.base)) {
    throw Error(p.function, "rotary.base", text("must be finite and above 0, got ", rotary.base));
  }
  // With a base below this, an angle may be infinite, since positions are up to 2^53.
  constexpr double kLeastBase = 1e-280;
  if (rotary.base < kLeastBase) {
    throw Error(p.function, "rotary.base", text("must be at least 1e-280, got ", rotary.base));
  }
  if (rotary.width == 0 && p.Dq != p.Dk) {
    throw Error(
        p.function, "rotary.width",
        text("must be given where q and k differ in width, got Dq = ", p.Dq, " and Dk = ", p.Dk));
  }
  const Index most = std::min(p.Dq, p.Dk);
  const Index width = rotary.width == 0 ? most : rotary.width;
  if (width < 2 || width > most || width % 2 != 0) {
    throw Error(p.function, "rotary.width",
                text("must be even and in 2 to D = ", most, ", got ", width,
                     rotary.width == 0 ? ", the whole of D" : ""));
  }
  core::RotatedRows map;
  map.halves = rotary.pairs == RotaryPairing::kHalves;
  map.width = width;
  map.base = rotary.base;
  map.frequencies = frequencies_of(p, rotary.frequencies, width);
  map.positions = positions_of(p, "rotary.q_positions", rotary.q_positions, p.q_rows,
                               p.packed() ? "sum Tq" : "Tq");
  p.query_maps.add(map);
  if (p.paged() && rotary.k_positions.given()) {
    throw Error(p.function, "rotary.k_positions",
                "is not available with keys in pages (block_tables), which count from 0");
  }
  map.positions = positions_of(p, "rotary.k_positions", rotary.k_positions, p.k_rows,
                               p.packed() ? "sum Tk" : "Tk");
  p.key_maps.add(map);
}

}  // namespace

void resolve_rows(const Options& options, Problem& p) {
  p.query_maps.clear();
  p.key_maps.clear();
  if (options.qk_norm) resolve_norm(*options.qk_norm, p);
  if (options.rotary) resolve_rotary(*options.rotary, p);
}

}  // namespace qkv::attn
