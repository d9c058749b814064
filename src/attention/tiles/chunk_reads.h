// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_CHUNK_READS_H_
#define QKV_ATTENTION_TILES_CHUNK_READS_H_

#include <algorithm>

#include "attention/tiles/row_options.h"
#include "core/head_rows.h"
#include "core/integers.h"

// The addresses of the keys and values of a chunk that a block reads as they are stored, and of the
// rows that it prefetches meanwhile. Rows are read in this order: the chunk's keys, its values, and
// the next chunk's keys. Each loop prefetches the rows that are read some KiB later, also when they
// belong to the next array.
namespace qkv::attn {

using core::Operand;
using kernels::ReadAhead;
using kernels::StoredRows;

class ChunkReads {
 public:
  // Distance between a read and its prefetch, chosen by measurement on memory that is read once.
  static constexpr Index kBytesAhead = Index{8} << 10;
  // Distance for q8, also chosen by measurement.
  static constexpr Index kQ8BytesAhead = Index{13} << 10;
  // Keys are read in blocks of at least this many: whole registers for any target.
  static constexpr Index kBlock = 16;

  // `block`: the number of keys of a block, a multiple of kBlock.
  explicit ChunkReads(Index block = kBlock) : block_(block) {}

  // Sets the chunk's keys or values: row 0 of the chunk is row j0 of `rows`. `k` and `v` must
  // outlive this object.
  void set_keys(const Operand& k, const core::HeadRows& rows, Index j0, Index width) {
    keys_ = Rows(k, rows, j0, width);
  }
  void set_values(const Operand& v, const core::HeadRows& rows, Index j0, Index width) {
    values_ = Rows(v, rows, j0, width);
  }

  // Announces that rows begin .. end - 1 of the chunk are read, and after them keys of the next
  // chunk up to row next_end - 1, also counted from the first row of this chunk.
  void expect(Index begin, Index end, Index next_end) {
    begin_ = begin;
    end_ = end;
    next_end_ = next_end;
  }

  StoredRows keys(Index n) const { return keys_.row(n); }
  StoredRows values(Index n) const { return values_.row(n); }
  // Number of rows, at most `most`, from row n on that are one row stride apart: keys(n) or
  // values(n) reaches all of them.
  Index run_of_keys(Index n, Index most) const { return keys_.run(n, most); }
  Index run_of_values(Index n, Index most) const { return values_.run(n, most); }
  // The rows to prefetch while keys n .. n + count - 1 are read, one for each key. `count` is
  // reduced to the number of such rows that are one row stride apart, rounded up to whole blocks.
  ReadAhead beside_keys(Index n, Index& count) const {
    if (!values_.given()) return beside(keys_, n, keys_, 0, next_end_, count);
    return beside(keys_, n, values_, begin_ - end_, 2 * end_ - begin_, count);
  }
  ReadAhead beside_values(Index n, Index& count) const {
    return beside(values_, n, keys_, 0, next_end_, count);
  }

 private:
  struct Rows {
    const Operand* x = nullptr;
    core::HeadRows places;
    Index j0 = 0;
    Index stride = 0;  // in bytes
    Index row_bytes = 0;
    Index ahead = kBlock;  // distance of the prefetch, in rows

    Rows() = default;
    Rows(const Operand& operand, const core::HeadRows& rows, Index first, Index width)
        : x(&operand), places(rows), j0(first) {
      stride = core::bytes_of(x->dtype, x->row_stride);
      row_bytes = core::bytes_of(x->dtype, width);
      const Index bytes = x->dtype == DType::kQ8 ? kQ8BytesAhead : kBytesAhead;
      const Index fit = bytes / std::max<Index>(row_bytes, 1) / kBlock * kBlock;
      ahead = std::clamp<Index>(fit, kBlock, 16 * kBlock);
    }
    bool given() const { return x != nullptr; }
    StoredRows row(Index n) const { return stored_rows(*x, places.offset(j0 + n)); }
    Index run(Index n, Index most) const { return places.run(j0 + n, most); }
    ReadAhead from(Index n) const {
      return {static_cast<const std::byte*>(row(n).data), stride, row_bytes};
    }
  };

  // The row that is read x.ahead rows after row n of `x`: it belongs to `x` up to row end_, then to
  // `next`, which continues with row end_ + shift up to row next_end + shift.
  ReadAhead beside(const Rows& x, Index n, const Rows& next, Index shift, Index next_end,
                   Index& count) const {
    const Index wanted = n + x.ahead;
    if (wanted < end_) {
      count = std::min(count, whole_blocks(x.run(wanted, end_ - wanted)));
      return x.from(wanted);
    }
    if (wanted >= next_end || !next.given()) return {};
    count = std::min(count, whole_blocks(next.run(wanted + shift, next_end - wanted)));
    return next.from(wanted + shift);
  }
  Index whole_blocks(Index n) const { return core::round_up(n, block_); }

  Rows keys_, values_;
  Index block_;
  Index begin_ = 0;
  Index end_ = 0;
  Index next_end_ = 0;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_CHUNK_READS_H_
