// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_PLACES_H_
#define QKV_EXPRESSIONS_PLACES_H_

#include <qkv/tile_loops.h>

#include "core/problem.h"

// The pairs for which expressions are evaluated.
namespace qkv::expressions {

// The place of a row's first key, and the lengths of its sequence.
struct RowPlace {
  At at;
  detail::Lengths lengths;

  RowPlace shifted(Index row, Index key) const {
    return {detail::shifted(at, static_cast<std::int32_t>(row), static_cast<std::int32_t>(key)),
            lengths};
  }
};

// A box of pairs: B batch entries from b on, H heads from h on, Tq queries from i on, and Tk keys
// from j on.
struct Pairs {
  Index B = 1;
  Index H = 1;
  Index Tq = 0;
  Index Tk = 0;
  Index b = 0, h = 0, i = 0, j = 0;
  // Lower and upper bounds of the lengths of the pairs' sequences.
  detail::Lengths shortest, longest;
};

inline detail::Lengths lengths_of(Index Tq, Index Tk) {
  return {static_cast<std::int32_t>(Tq), static_cast<std::int32_t>(Tk)};
}

// All pairs of sequences of one length.
inline Pairs all_pairs(Index B, Index H, Index Tq, Index Tk) {
  const detail::Lengths lengths = lengths_of(Tq, Tk);
  return {B, H, Tq, Tk, 0, 0, 0, 0, lengths, lengths};
}

// The number of heads from head_number(0) to head_number(heads - 1) of a problem.
inline Index heads_spanned(const core::Problem& p, Index heads) {
  return heads == 0 ? 0 : p.head_number(heads - 1) - p.head_number(0) + 1;
}

// All pairs of one sequence of a problem, in batch entry 0 and the problem's first head.
inline Pairs all_pairs(const core::Problem& p, const core::Sequence& s) {
  Pairs pairs = all_pairs(1, 1, s.Tq, s.Tk);
  pairs.h = p.head_number(0);
  pairs.i = p.first_query();
  pairs.j = p.first_key();
  pairs.shortest = pairs.longest = lengths_of(p.whole_queries(s), p.whole_keys(s));
  return pairs;
}

// All pairs of a problem.
inline Pairs all_pairs(const core::Problem& p) {
  Pairs pairs = all_pairs(p, {0, 0, p.Tq, p.Tk});
  pairs.B = p.B;
  pairs.H = heads_spanned(p, p.H);
  if (p.packed()) pairs.shortest.Tq = 0;
  if (p.packed() || p.paged()) pairs.shortest.Tk = 0;
  return pairs;
}

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_PLACES_H_
