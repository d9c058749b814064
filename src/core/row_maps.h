// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ROW_MAPS_H_
#define QKV_CORE_ROW_MAPS_H_

#include <array>
#include <span>
#include <variant>

#include "core/operand.h"

// What is made of each row of q, and of k, before pairs are made: a score is two of these and a
// product of pairs. reference/row_maps.h has the loops.
namespace qkv::core {

// y = x / |x|
struct UnitRows {};

// The maps that keep the width of a row. One that is appended does not compile before it has its
// loops.
using RowMap = std::variant<UnitRows>;

// y_u = sum_c w_uc x_c + b_u; with `turned` w is read as w_cu. One for all query heads, or for
// each; given for k it makes one row for each query head.
struct RowProduct {
  Operand w;
  bool turned = false;
  Operand b;        // may be absent
  Index units = 0;  // the width of y

  bool given() const noexcept { return w.given(); }
};

// Maps that keep the width, one after the other, and then a product, if there is one.
class RowMaps {
 public:
  RowProduct product;

  std::span<const RowMap> maps() const noexcept { return {maps_.data(), count_}; }
  void add(const RowMap& map) { maps_.at(count_++) = map; }
  bool is_identity() const noexcept { return count_ == 0 && !product.given(); }
  // Of rows of `width`.
  Index width(Index width) const noexcept { return product.given() ? product.units : width; }

 private:
  std::array<RowMap, 4> maps_;
  std::size_t count_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_ROW_MAPS_H_
