// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_CALL_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_CALL_H_

#include "attention/backward/gradient_rows.h"
#include "attention/tiles/call.h"
#include "core/integers.h"
#include "expressions/captured_gradients.h"
#include "kernels/gradient_kernels.h"
#include "runtime/task_order.h"

// State that all tasks of a fused backward pass share.
namespace qkv::attn {

using core::GradientResults;
using core::GradientSources;
using core::kGradientBlock;

inline constexpr Index kGradientPanels = kGradientBlock / kPanel;
inline constexpr Index kGradientTiles = core::divide_up(kGradientBlock, kTileRows);
// Distance between rows of scores, in elements: one cache line more than a block (float32), so that
// rows do not map to the same cache sets.
inline constexpr Index kGradientStride = kGradientBlock + 16;
// Distance, in words, between rows of words of two keys (kernels/dot2_kernels.h).
inline constexpr Index kGradientWords = kGradientStride / 2;

// The arrays that step 1 writes and step 2 reads (backward.h), each for `entries` batch entries,
// and the rows of inputs and gradients. Arrays of packed sequences have no axis of entries.
template <class T>
struct FusedGradientCall {
  const Problem& p;
  const GradientSources& from;
  const GradientResults& to;
  FusedCall<T> dot;
  const kernels::GradientKernels<T>& kernels;
  const runtime::Call* call = nullptr;  // the call, while it runs
  const Index entries;  // number of batch entries whose rows fit in memory at a time
  RowPlaces query_places, key_places;

  PlainRows<T> q, dout;
  GradientRows<T> dq, dk, dv;
  core::OwnGradients<T> own;  // accumulators with the shapes of the user's buffers
  T* lse = nullptr;           // [entries,H,q_rows]: lse of each query
  T* factor = nullptr;        // [entries,H,q_rows]: of weights, core/weight_factor.h
  T* delta = nullptr;         // [entries,H,q_rows]: see backward.h
  T* alibi_rows = nullptr;    // [entries,H,q_rows]: the query's part of dalibi
  T* bias_rows = nullptr;     // [entries,H,q_rows]: the query's part of dbias, if all keys share it
  T* sink_sums = nullptr;     // [blocks()]: part of dsinks of each block of queries
  std::uint8_t* finite = nullptr;  // [blocks()]: 1 if the block's rows of q and dout are finite
  KeyRange* key_blocks = nullptr;  // [blocks()]: the key blocks that interval masks allow
  runtime::TaskOrder order;        // [blocks()]: counters for ordered accumulation in query rows
  expressions::CapturedGradients captured;  // for tasks to copy: gradients of captured arrays
  runtime::TaskOrder captured_order;        // the order in which tasks add captured gradients
  Index* listed = nullptr;                  // the listed rows of dweights, sorted by query

  // For scores with input transforms: further results that the gradients of the transforms need.
  bool sums_v = false;               // compute v_sums, for the gradient of the additive score's v
  bool tells_live = false;           // compute row_live and key_live
  T* v_sums = nullptr;               // [key blocks][units]: parts of the gradient of v
  std::uint8_t* row_live = nullptr;  // [entries,H,q_rows]: 1 if the query has an unmasked pair
  std::uint8_t* key_live = nullptr;  // [entries,G,k_rows]: KeyGradients::is_live() of the key

  FusedGradientCall(const Problem& problem, const GradientSources& sources,
                    const GradientResults& results, kernels::Target target,
                    const AdditiveScores<T>* additive, Index most_entries)
      : p(problem),
        from(sources),
        to(results),
        dot(problem, target, additive, products_of<T>(problem, target, sources)),
        kernels(gradient_kernels_of<T>(target, dot.products)),
        entries(std::min(most_entries, problem.B)),
        query_places(RowPlaces::of_queries(problem)),
        key_places(RowPlaces::of_keys(problem)),
        q(problem, problem.q, query_places, problem.Dk, dot.products),
        dout(problem, sources.dout, query_places, problem.E, dot.products),
        dq(problem, results.q, query_places, problem.H, width_of(problem, additive)),
        dk(problem, results.k, key_places, problem.G, width_of(problem, additive)),
        dv(problem, results.v, key_places, problem.value_heads, problem.E),
        own(problem, results) {}

  // Makes row and block indices count from batch entry b on.
  void go_to(Index b) {
    query_places = query_places.from(b);
    key_places = key_places.from(b);
    for (PlainRows<T>* rows : {&q, &dout}) rows->go_to(b);
    for (GradientRows<T>* rows : {&dq, &dk, &dv}) rows->go_to(b);
  }

  // Number of elements, or of words, that hold `width` channels.
  Index terms(Index width) const { return dot.in_words ? kernels::words_of(width) : width; }
  // Number of elements of a row of dq and dk.
  Index width() const { return width_of(p, dot.additive); }

  // ---- what is requested ------------------------------------------------------------------------

  // Whether dbias is requested and has one column for all keys, so that it is a sum over keys.
  bool sums_bias_rows() const { return to.bias.given() && to.bias.own.col_stride == 0 && p.Tk > 1; }
  // Whether dbias is requested and has a column for each key.
  bool sums_bias_keys() const { return to.bias.given() && !sums_bias_rows(); }
  // Whether blocks of keys add to rows of queries: dq, alibi_rows or bias_rows.
  bool adds_to_queries() const { return to.q.given() || to.alibi.given() || sums_bias_rows(); }
  bool needs_score_gradients() const {
    return adds_to_queries() || to.k.given() || to.bias.given() || sums_v || sums_captured();
  }
  bool sums_captured() const { return !to.captured.empty(); }
  // Whether dq (dk) is requested and is a product with ds, which it is not for additive scores.
  bool multiplies_queries() const { return to.q.given() && dot.additive == nullptr; }
  bool multiplies_keys() const { return to.k.given() && dot.additive == nullptr; }
  // Whether dv is requested and dout is given, without which dv is 0.
  bool sums_values() const { return dout.given() && to.v.given(); }
  // Whether dw = dout . v is computed.
  bool multiplies_values() const { return dout.given() && needs_score_gradients(); }
  // Whether the derivative of a score with respect to q . k is not just the scale, because of a
  // soft-cap or mods.
  bool has_slopes() const { return p.softcap != 0 || !p.mods.empty(); }
  // Whether dbias or dalibi is requested: they need ds before it is multiplied by slopes or scale.
  bool sums_score_gradients() const { return to.bias.given() || to.alibi.given(); }
  // Whether dbias is requested, there are no masks, and exactly one query-key pair reads each
  // element of the bias. Elements of dbias are then stored, in an array that is not cleared first.
  bool stores_bias() const {
    if (!sums_bias_keys() || !p.masks.empty() || p.q_rows == 0 || p.k_rows == 0) return false;
    const core::ResultOperand& strides = to.bias.own;
    return units_sharing(p, to.bias) == 1 && (p.H == 1 || strides.head_stride != 0) &&
           (p.Tq == 1 || strides.row_stride != 0);
  }
  // Whether dw is computed and no option but masks changes scores or gradients between products.
  bool is_plain() const {
    return multiplies_values() && !has_slopes() && !sums_score_gradients() && !p.bias.given() &&
           !p.alibi.given() && p.dropout == 0 && !from.dweights.given();
  }
  bool lists_rows() const { return from.dweights.given() && from.dweights.indices.given(); }

  // ---- blocks of queries --------------------------------------------------------------------

  Index block_of(Index b, Index h, const Sequence& s, Index block) const {
    if (!p.packed()) return (nth(b) * p.H + h) * core::divide_up(p.Tq, kGradientBlock) + block;
    // Each sequence starts a new block, so it may have one block more than its rows fill.
    return h * blocks_of_head() + s.q0 / kGradientBlock + b + block;
  }
  Index blocks() const {
    return p.packed() ? p.H * blocks_of_head()
                      : entries * p.H * core::divide_up(p.Tq, kGradientBlock);
  }

  // ---- blocks of keys -----------------------------------------------------------------------

  Index key_block_of(const KeyUnit& unit, Index block) const {
    if (!p.packed())
      return (nth(unit.b) * p.G + unit.g) * core::divide_up(p.Tk, kGradientBlock) + block;
    return unit.g * key_blocks_of_head() + unit.s.k0 / kGradientBlock + unit.b + block;
  }
  Index key_block_count() const {
    return p.packed() ? p.G * key_blocks_of_head()
                      : entries * p.G * core::divide_up(p.Tk, kGradientBlock);
  }

  // lse, factor and delta of the queries from row index `place` on.
  kernels::QueryState<T> state_of(Index place) const {
    return {lse + place, factor + place, delta + place};
  }

  // Calls f(n) for each listed row n that refers to query i.
  template <class F>
  void for_each_listed(Index i, const F& f) const {
    const core::RowsOperand& m = from.dweights;
    const auto before = [&](Index n, Index query) { return query_of_row(n) < query; };
    for (const Index* n = std::lower_bound(listed, listed + m.count, i, before);
         n != listed + m.count && query_of_row(*n) == i; ++n) {
      f(*n);
    }
  }
  Index query_of_row(Index n) const {
    const Operand& indices = from.dweights.indices;
    return core::load<Index>(indices.dtype, indices.data, n * indices.row_stride);
  }
  // Adds dweights of query `at` and keys j0 .. j0 + n - 1 to `to_values`. `spare` holds 2 n
  // elements.
  void add_dweights(const QueryAt& at, Index j0, Index n, T* to_values, T* spare) const {
    const core::RowsOperand& m = from.dweights;
    if (!m.given()) return;
    const Index entry = core::batch_offset(m.matrix, p.batch, at.b);
    const auto load_row = [&](Index row, T* values) {
      load_values(m.matrix, core::offset_of(m.matrix, entry, at.h, row, j0), m.matrix.col_stride, n,
                  values);
    };
    if (!lists_rows()) {
      load_row(at.i, spare);
    } else {
      std::fill_n(spare, n, T(0));
      for_each_listed(at.i, [&](Index row) {
        load_row(row, spare + n);
        kernels.add(spare, spare + n, n);
      });
    }
    kernels.add(to_values, spare, n);
  }
  bool has_dweights(Index i) const {
    bool has = from.dweights.given() && !lists_rows();
    if (lists_rows()) for_each_listed(i, [&](Index) { has = true; });
    return has;
  }

 private:
  static Index width_of(const Problem& p, const AdditiveScores<T>* additive) {
    return additive == nullptr ? p.Dk : additive->units;
  }
  Index nth(Index b) const { return b - query_places.first; }
  Index key_blocks_of_head() const { return p.k_rows / kGradientBlock + p.B; }
  Index blocks_of_head() const { return p.q_rows / kGradientBlock + p.B; }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_CALL_H_
