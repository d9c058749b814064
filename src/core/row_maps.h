// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ROW_MAPS_H_
#define QKV_CORE_ROW_MAPS_H_

#include <array>
#include <span>
#include <variant>

#include "core/operand.h"

// The maps applied to each row of q, and of k, before pairs are formed: a score is two of these and
// a pair product. reference/row_maps.h has the loops.
namespace qkv::core {

// y = x / |x|
struct UnitRows {};

// y_c = g_c x_c / sqrt(mean of x_c^2 + eps): RMSNorm (Zhang and Sennrich 2019, eq. 4).
struct RmsRows {
  Operand gain;  // columns = channels, heads those of the rows; absent: 1
  double eps = 0;
};

// Pairs m of the first `width` values are rotated by the angle position * frequency_m (Su et al.
// 2021, section 3.4.2), the others are unchanged.
struct RotatedRows {
  bool halves = false;  // pairs (m, m + width/2), else (2m, 2m + 1)
  Index width = 0;
  double base = 0;      // frequency_m = base^(-2m/width), unless frequencies are given:
  Operand frequencies;  // columns = pairs
  Operand positions;    // of rows; absent: RowAt::place of each row
};

// The maps that preserve the width of a row. A new one does not compile until it has its loops.
using RowMap = std::variant<UnitRows, RmsRows, RotatedRows>;

// y_u = sum_c w_uc x_c + b_u; if `turned`, w is read as w_cu. Shared by all query heads, or one per
// head; the latter, for k, makes one row per query head.
struct RowProduct {
  Operand w;
  bool turned = false;
  Operand b;        // may be absent
  Index units = 0;  // the width of y

  bool given() const noexcept { return w.given(); }
};

// Maps that preserve the width, applied in order, then a product, if there is one.
class RowMaps {
 public:
  RowProduct product;

  std::span<const RowMap> maps() const noexcept { return {maps_.data(), count_}; }
  void add(const RowMap& map) { maps_.at(count_++) = map; }
  void clear() noexcept {
    product = {};
    count_ = 0;
  }
  // Whether one of them has a gain. At most one has.
  bool have_gain() const noexcept {
    for (const RowMap& map : maps()) {
      const auto* norm = std::get_if<RmsRows>(&map);
      if (norm != nullptr && norm->gain.given()) return true;
    }
    return false;
  }
  bool is_identity() const noexcept { return count_ == 0 && !product.given(); }
  // The width of the result for rows of `width`.
  Index width(Index width) const noexcept { return product.given() ? product.units : width; }

 private:
  std::array<RowMap, 4> maps_;
  std::size_t count_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_ROW_MAPS_H_
