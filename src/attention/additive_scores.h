// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ADDITIVE_SCORES_H_
#define QKV_ATTENTION_ADDITIVE_SCORES_H_

#include <algorithm>
#include <cstdint>

#include "attention/row_places.h"
#include "kernels/additive_kernels.h"
#include "kernels/gradient_kernels.h"

// The additive score as the stages of a fused pass see it: q and k are rows of exponentials,
// [units] of x and then [units] of powers (kernels/additive_kernels.h), one of k for each query
// head.
namespace qkv::door {

template <class T>
struct AdditiveScores {
  const kernels::AdditiveKernels<T>* kernels = nullptr;
  Index units = 0;
  Index chunks = 0;                           // of units
  RowPlaces queries, keys;                    // of the flags below
  const T* v = nullptr;                       // [H][units]
  const T* chunk_sums = nullptr;              // [H][chunks]
  const std::uint8_t* odd_v = nullptr;        // [H]: a sum of v may not be finite
  const std::uint8_t* query_flags = nullptr;  // of each row: some power is not 0
  const std::uint8_t* key_flags = nullptr;
  bool powers = false;  // some flag of the call is set, or odd_v: then they are read

  Index width() const { return powers ? 2 * units : units; }
  kernels::AdditiveUnits<T> units_of(Index h) const {
    return {v + h * units, chunk_sums + h * chunks, units};
  }
  // x_u <- v_u x_u. Where nothing was added to x v may be anything.
  void multiply_by_v(Index h, const kernels::GradientKernels<T>& by, T* x) const {
    const T* factors = v + h * units;
    if (odd_v[h] == 0) return by.multiply(x, factors, units);
    for (Index u = 0; u < units; ++u) x[u] = x[u] == T(0) ? x[u] : factors[u] * x[u];
  }
  // Of rows of projected values, into the rows at `place` of `to`, and their flags. Returns whether
  // one is set.
  bool put_exponentials(const kernels::RowsOf<T>& projected, Index rows, Index place, T* to,
                        std::uint8_t* flags) const {
    bool any_power = false;
    for (Index r = 0; r < rows; ++r) {
      T* row = to + (place + r) * 2 * units;
      const T* a = projected.data + r * projected.stride;
      const bool power = kernels->exponentials(a, units, row, row + units);
      flags[place + r] = static_cast<std::uint8_t>(power);
      any_power = any_power || power;
    }
    return any_power;
  }
  bool query_has_powers(Index b, Index h, Index row) const {
    return powers && query_flags[queries.of(b, h, row)] != 0;
  }
  bool queries_have_powers(Index b, Index h, Index row, Index count) const {
    return powers && any(query_flags + queries.of(b, h, row), count);
  }
  bool keys_have_powers(Index b, Index h, Index row, Index count) const {
    return powers && any(key_flags + keys.of(b, h, row), count);
  }
  void scores(Index h, const kernels::RowsOf<const T>& q, Index rows, const T* panel, Index count,
              bool with_powers, T scale, const kernels::RowsOf<T>& s) const {
    const auto run = odd_v[h] != 0 ? kernels->scores_of_any_v
                     : with_powers ? kernels->scores_with_powers
                                   : kernels->scores;
    run(q, rows, panel, count, units_of(h), scale, s);
  }

 private:
  static bool any(const std::uint8_t* flags, Index count) {
    return std::find(flags, flags + count, std::uint8_t{1}) != flags + count;
  }
};

}  // namespace qkv::door

#endif  // QKV_ATTENTION_ADDITIVE_SCORES_H_
