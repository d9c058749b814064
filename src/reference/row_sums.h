// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROW_SUMS_H_
#define QKV_REFERENCE_ROW_SUMS_H_

#include <type_traits>

#include "core/bfloat16_products.h"
#include "reference/scalar.h"

namespace qkv::reference {

using core::Products;

// Weighted sums of rows, sum_n factor_n row_n, computed with the products of the call. kDot2 and
// kAmx round the factors to bfloat16.
template <class T>
class RowSums {
 public:
  // The number of elements of scratch that sums of `width` elements need.
  static constexpr Index scratch(Products products, Index width) {
    return products == Products::kAmx ? 2 * width : 0;
  }

  RowSums() = default;
  // `chains` has scratch(products, width) elements.
  RowSums(Products products, T* chains, Index width) : products_(products), width_(width) {
    if (products == Products::kAmx) amx_ = core::AmxSums<T>(chains, width);
  }

  Products products() const { return products_; }
  // Begins with term n. `to` has the sums of earlier terms; after end() it includes the terms that
  // add() has added.
  void begin(Index n, T* to) {
    to_ = to;
    if (products_ == Products::kAmx) amx_.begin(n, to);
  }
  // Adds term n, factor * row. Terms come in the order of core::for_each_term.
  void add(Index n, const T& factor, const T* row) {
    if constexpr (std::is_same_v<T, float>) {
      switch (products_) {
        case Products::kPlain:
          break;
        case Products::kDot2: {
          const float rounded = core::rounded_weight(factor);
          for (Index c = 0; c < width_; ++c) {
            to_[c] = core::add_flushed_product(rounded, row[c], to_[c]);
          }
          return;
        }
        case Products::kAmx:
          amx_.add(n, core::rounded_weight(factor), row);
          return;
      }
    }
    for (Index c = 0; c < width_; ++c) to_[c] = fused_multiply_add(factor, row[c], to_[c]);
  }
  void end() {
    if (products_ == Products::kAmx) amx_.end();
  }

 private:
  Products products_ = Products::kPlain;
  Index width_ = 0;
  T* to_ = nullptr;
  core::AmxSums<T> amx_;
};

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROW_SUMS_H_
