// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_HEAD_ROWS_H_
#define QKV_CORE_HEAD_ROWS_H_

#include <algorithm>

#include "core/problem.h"

namespace qkv::core {

// The number of keys of a page is a multiple of this. Kernels read keys in blocks of whole
// registers, and on every target such a block may then begin where a page begins.
inline constexpr Index kPageMultiple = 16;

// The offsets of the rows of one head of a batch entry or sequence, in elements from the operand's
// data. Rows in pages are found through the entry's block table.
class HeadRows {
 public:
  HeadRows() = default;
  // Row 0 is row `first` of the head; for rows in pages, the first row of the entry.
  HeadRows(const Problem& p, const Operand& x, Index b, Index head, Index first)
      : row_stride_(x.row_stride) {
    if (!x.in_pages()) {
      first_ = offset_of(x, batch_offset(x, p.batch, b), head, first, 0);
      return;
    }
    first_ = head * x.head_stride;
    table_ = p.block_table(b);
    page_rows_ = x.page_rows;
    page_stride_ = x.page_stride;
  }

  Index offset(Index j) const noexcept {
    if (table_ == nullptr) return first_ + j * row_stride_;
    const Index page = j / page_rows_;
    return first_ + table_[page] * page_stride_ + (j - page * page_rows_) * row_stride_;
  }
  // The number of rows from j on, at most `most`, that are one row stride apart.
  Index run(Index j, Index most) const noexcept {
    return table_ == nullptr ? most : std::min(most, page_rows_ - j % page_rows_);
  }

 private:
  Index first_ = 0;
  Index row_stride_ = 0;
  const Index* table_ = nullptr;  // null: the rows are not in pages
  Index page_rows_ = 0;
  Index page_stride_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_HEAD_ROWS_H_
