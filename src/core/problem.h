// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_PROBLEM_H_
#define QKV_CORE_PROBLEM_H_

#include <cassert>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include <qkv/options.h>

#include "core/operand.h"
#include "core/order.h"
#include "core/philox.h"
#include "core/row_maps.h"
#include "core/stop.h"
#include "core/storage.h"

// One call of attention, with its arrays and options checked and every default filled in: the form
// that implementations read.
namespace qkv::core {

// Where the arrays of a call lie. The processor cannot read arrays in device memory, so their
// numbers are not checked: kernels clamp lengths and starts of sequences to the arrays' bounds, and
// a sequence that would end before it starts is empty.
enum class Memory { kHost, kDevice };

// The product of two rows in a score: left . right, or sum_u v_u tanh(left_u + right_u).
enum class PairProduct { kDot, kTanh };

// One batch entry, or one packed sequence: rows q0 .. q0+Tq-1 of q and k0 .. k0+Tk-1 of k.
struct Sequence {
  Index q0 = 0;
  Index k0 = 0;
  Index Tq = 0;
  Index Tk = 0;
};

// One type for each mask of the public list qkv::Mask, in the form that core/masks.h evaluates.
struct CausalMask {};
struct WindowMask {
  Window window;
};
struct KeepMask {
  Operand keep;  // rows = queries, columns = keys
};
struct PaddingMask {
  Operand padding;         // columns = keys
  Index entry_stride = 0;  // between flat batch entries
};
struct LengthMask {
  Operand lengths;         // rows = queries (stride 0 for [B])
  Index entry_stride = 0;  // between flat batch entries, or packed sequences
  Index first_key = 0;     // the position of key 0
};
struct RowRanges;  // core/masks.h
struct UserMask {
  // The function in the caller's options. Null: the mask comes from a score where(mask, x, -inf),
  // and `ranges`, then never null, alone is that mask.
  const MaskMod* mod = nullptr;
  // Ranges that contain all keys which the mask allows, and the classes of its tiles; null if
  // unknown.
  const RowRanges* ranges = nullptr;
  const detail::TileClasses* classes = nullptr;
};
using ResolvedMask =
    std::variant<CausalMask, WindowMask, KeepMask, PaddingMask, LengthMask, UserMask>;
static_assert(std::variant_size_v<ResolvedMask> == std::variant_size_v<Mask>);

struct Problem {
  std::string_view function;  // the public function called, for messages
  StopPoint stop;             // polls the stop flag of its context
  Memory memory = Memory::kHost;
  bool on_device() const noexcept { return memory == Memory::kDevice; }

  Dims batch;             // batch axes; B is their product
  bool head_axis = true;  // whether results have a head axis: not if all inputs have rank 2, or all
                          // have rank 3 and are not packed
  Index B = 1, H = 1, G = 1;
  Index value_heads = 1;  // heads of v: G, or fewer if keys are projected for each query head
  // Queries and keys of an entry. Packed: of the longest sequence, or in device memory all rows.
  // With pages, Tk is that of the longest entry.
  Index Tq = 0, Tk = 0;
  Index Dq = 0, Dk = 0, E = 0, U = 0;
  Index key_chunk = kKeyChunk;       // key_chunk(Dk), see core/order.h
  Index q_rows = 0, k_rows = 0;      // rows of q and k: Tq and Tk, or the packed totals
  DType dtype = DType::kNone;        // dtype of q and out
  DType accumulator = DType::kNone;  // float32 or float64 (complex128 in gradient checks)

  Operand q, k, v;                     // columns = channels
  Operand cu_seqlens_q, cu_seqlens_k;  // B + 1 first rows of sequences, along rows
  bool packed() const noexcept { return cu_seqlens_q.given(); }
  // Keys and values in pages: the number of keys of each batch entry, and the pages that hold them.
  Operand context_lens;                 // rows = batch entries
  std::span<const Index> block_tables;  // [B, table_pages]
  Index table_pages = 0;
  bool paged() const noexcept { return context_lens.given(); }
  const Index* block_table(Index b) const noexcept { return block_tables.data() + b * table_pages; }

  // The place of the arrays in longer sequences. Indices i and j count in the arrays; positions,
  // which options depend on, are i + first_query() and j + first_key().
  std::optional<Shard> shard;
  Index first_query() const noexcept { return shard ? shard->first_query : 0; }
  Index first_key() const noexcept { return shard ? shard->first_key : 0; }
  // The number of a head as dropout and user functions get it.
  Index head_number(Index h) const noexcept {
    return shard ? shard->first_head + h * shard->head_step : h;
  }
  // Whether the call has only a part of the keys; saved results of a backward call cover all keys.
  bool has_part_of_keys() const noexcept { return shard && shard->keys != Tk; }

  RowMaps query_maps, key_maps;  // of q and of k
  PairProduct product = PairProduct::kDot;
  Operand score_v;  // of kTanh: [U] or [H,U], columns = units
  double scale = 1;
  double softcap = 0;
  std::span<const ScoreMod> mods;  // of the caller's options
  Operand bias;                    // rows = queries, columns = keys
  Diagonal diagonal;
  Operand offsets;  // one per batch entry, rows = batch entries
  Operand alibi;    // one per head, or per batch entry and head
  std::span<const ResolvedMask> masks;
  Operand sinks;  // one per head
  double dropout = 0;
  DropoutMask dropout_mask;

  // The rows of batch entry or sequence b. For host memory only; on a device kernels find them.
  Sequence sequence(Index b) const noexcept {
    assert(!on_device());
    const auto at = [&](const Operand& x, Index n) {
      return load<Index>(x.dtype, x.data, n * x.row_stride);
    };
    if (paged()) return {0, 0, Tq, at(context_lens, b)};
    if (!packed()) return {0, 0, Tq, Tk};
    const Index q0 = at(cu_seqlens_q, b);
    const Index k0 = at(cu_seqlens_k, b);
    return {q0, k0, at(cu_seqlens_q, b + 1) - q0, at(cu_seqlens_k, b + 1) - k0};
  }

  // The numbers of queries and of keys of the whole sequence, of which the call may have a part.
  Index whole_queries(const Sequence& s) const noexcept { return shard ? shard->queries : s.Tq; }
  Index whole_keys(const Sequence& s) const noexcept { return shard ? shard->keys : s.Tk; }

  // The number o of the diagonal j = i + o of batch entry b, for indices i and j. For host memory
  // only; on a device kernels find it.
  Index diagonal_offset(Index b, const Sequence& s) const noexcept {
    assert(!on_device());
    struct OffsetOf {
      const Problem& p;
      Index b;
      const Sequence& s;
      Index operator()(const BottomRight&) const { return p.whole_keys(s) - p.whole_queries(s); }
      Index operator()(const TopLeft&) const { return 0; }
      Index operator()(const Offset& given) const { return given.o; }
      Index operator()(const Offsets&) const {
        return load<Index>(p.offsets.dtype, p.offsets.data, b * p.offsets.row_stride);
      }
    };
    return std::visit(OffsetOf{*this, b, s}, diagonal) + first_query() - first_key();
  }

  // The numbers that decide which weights of query i are dropped, by position of the key.
  DropoutRow dropout_row(Index b, Index h, Index i) const noexcept {
    return dropout_mask.row(b, head_number(h), i + first_query());
  }

  // The key head that query head h reads.
  Index key_head(Index h) const noexcept { return h * G / H; }
  // The head of v for key head g.
  Index value_head(Index g) const noexcept { return g * value_heads / G; }
};

// A problem with masks and copies of numbers of its own, to which it points: it cannot be copied.
struct ResolvedProblem : Problem {
  ResolvedProblem() = default;
  ResolvedProblem(const ResolvedProblem&) = delete;
  ResolvedProblem& operator=(const ResolvedProblem&) = delete;
  std::vector<ResolvedMask> own_masks;
  std::vector<std::shared_ptr<const void>> own_mask_tables;  // of own_masks
  // Copies of the caller's numbers, as they were when checked.
  std::vector<Index> own_cu_seqlens_q, own_cu_seqlens_k, own_context_lens, own_block_tables;
};

}  // namespace qkv::core

#endif  // QKV_CORE_PROBLEM_H_
