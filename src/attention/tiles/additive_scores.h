// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_ADDITIVE_SCORES_H_
#define QKV_ATTENTION_TILES_ADDITIVE_SCORES_H_

#include <algorithm>
#include <cstdint>

#include "attention/tiles/row_places.h"
#include "kernels/additive_kernels.h"
#include "kernels/gradient_kernels.h"

// The additive score as the steps of a fused pass see it. A row of q or k holds exponentials in two
// parts: x of all units, then the powers of all units (kernels/additive_kernels.h). k has one row
// per query head. AdditiveScores refers to arrays of the pass with transformed inputs
// (attention/rowmaps) and owns none.
namespace qkv::attn {

using kernels::ExponentialForm;

template <class T>
struct AdditiveScores {
  const kernels::AdditiveKernels<T>* kernels = nullptr;
  Index units = 0;
  RowPlaces queries, keys;                       // index query_forms and key_forms
  const T* v = nullptr;                          // [H][units]
  const std::uint8_t* non_finite_v = nullptr;    // [H]: whether v has a non-finite element
  const ExponentialForm* query_forms = nullptr;  // one per query row: the form of its exponentials
  const ExponentialForm* key_forms = nullptr;
  ExponentialForm most = ExponentialForm::kSmall;  // the most general form in the call

  bool has_powers() const { return most == ExponentialForm::kPowers; }
  Index width() const { return has_powers() ? 2 * units : units; }
  kernels::AdditiveUnits<T> units_of(Index h) const { return {v + h * units, units}; }
  // Multiplies the gradient of a projected row by v: x_u <- v_u x_u. If v has a non-finite element,
  // the gradient of a row without an unmasked pair (`live` is false) stays as it is: 0.
  void multiply_by_v(Index h, bool live, const kernels::GradientKernels<T>& by, T* x) const {
    if (live || !is_non_finite(h)) by.multiply(x, v + h * units, units);
  }
  bool is_non_finite(Index h) const { return non_finite_v[h] != 0; }
  // Writes the exponentials of `rows` rows of projected values to `to`, rows of 2 units elements,
  // from row `place` on, and their forms to `forms`, from index `place` on.
  void put_exponentials(const kernels::RowsOf<const T>& values, Index rows, Index place, T* to,
                        ExponentialForm* forms) const {
    for (Index r = 0; r < rows; ++r) {
      T* row = to + (place + r) * 2 * units;
      forms[place + r] =
          kernels->exponentials(values.data + r * values.stride, units, row, row + units);
    }
  }
  // The most general form of `count` rows from (b, h, row) on.
  ExponentialForm of_queries(Index b, Index h, Index row, Index count) const {
    return highest_of(query_forms + queries.of(b, h, row), count);
  }
  ExponentialForm of_keys(Index b, Index h, Index row, Index count) const {
    return highest_of(key_forms + keys.of(b, h, row), count);
  }
  void scores(Index h, const kernels::RowsOf<const T>& q, Index rows, const T* panel, Index count,
              ExponentialForm form, T scale, const kernels::RowsOf<T>& s) const {
    const auto run = form == ExponentialForm::kSmall   ? kernels->scores_of_small
                     : form == ExponentialForm::kWhole ? kernels->scores
                                                       : kernels->scores_with_powers;
    run(q, rows, panel, count, units_of(h), scale, s);
  }

 private:
  ExponentialForm highest_of(const ExponentialForm* forms, Index count) const {
    if (most == ExponentialForm::kSmall) return most;
    return *std::max_element(forms, forms + count);
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_ADDITIVE_SCORES_H_
