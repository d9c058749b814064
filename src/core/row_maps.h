// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ROW_MAPS_H_
#define QKV_CORE_ROW_MAPS_H_

#include <array>
#include <span>
#include <variant>

#include "core/operand.h"

// The transforms of each row of q and of k ("row maps") before query-key pairs are formed. A score
// is computed from the two transformed rows. The loops are in reference/row_maps.h.
namespace qkv::core {

// Cosine: y = x / |x|.
struct UnitRows {};

// RMS norm: y_c = g_c x_c / sqrt(mean of x_c^2 + eps) (RMSNorm, Zhang and Sennrich 2019, eq. 4).
struct RmsRows {
  Operand gain;  // columns = channels, heads = those of the rows; absent: 1
  double eps = 0;
};

// RoPE rotation: pair m of the first `width` values is rotated by the angle position * frequency_m
// (Su et al. 2021, section 3.4.2), and the other values are unchanged.
struct RotatedRows {
  bool halves = false;  // pair m is (m, m + width/2), else (2m, 2m + 1)
  Index width = 0;
  double base = 0;      // frequency_m = base^(-2m/width), unless frequencies are given
  Operand frequencies;  // columns = pairs
  Operand positions;    // one per row; absent: i + o of query i, j of key j
};

// The transforms that preserve the width of a row. A transform added here does not compile until
// its loops, change_row() and change_back(), exist.
using RowMap = std::variant<UnitRows, RmsRows, RotatedRows>;

// Projection: y_u = sum_c w_uc x_c + b_u. If `transposed`, w is stored as w_cu. All query heads
// share one w, or each has its own; a row of k then has one projection per query head.
struct RowProduct {
  Operand w;
  bool transposed = false;
  Operand b;        // may be absent
  Index units = 0;  // the width of y

  bool given() const noexcept { return w.given(); }
};

// The transforms of a row: those that preserve the width, in order, then the projection if given.
class RowMaps {
 public:
  RowProduct product;

  std::span<const RowMap> maps() const noexcept { return {maps_.data(), count_}; }
  void add(const RowMap& map) { maps_.at(count_++) = map; }
  void clear() noexcept {
    product = {};
    count_ = 0;
  }
  bool is_identity() const noexcept { return count_ == 0 && !product.given(); }
  // The width of a transformed row whose width was `width` before.
  Index width(Index width) const noexcept { return product.given() ? product.units : width; }

 private:
  std::array<RowMap, 4> maps_;
  std::size_t count_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_ROW_MAPS_H_
