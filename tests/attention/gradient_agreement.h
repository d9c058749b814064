// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_GRADIENT_AGREEMENT_H_
#define QKV_TESTS_ATTENTION_GRADIENT_AGREEMENT_H_

#include <map>
#include <string>
#include <vector>

#include "core/problem.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/score_bounds.h"

namespace qkv::test {

// Which numbers are bit-identical on the reference and on this path if both are given the results
// that one of them saved.
Same same_on(std::string_view path, const Options& options);

// The bounds of the difference between two paths in one call's gradients, element by element, in
// the order in which differences arise. eps = 2^-23 (2^-52 for float64) is twice a rounding's
// largest error, tiny the spacing of denormal numbers. A sum of n terms t errs by (8 + 4 sqrt(n))
// eps sum |t|: roundings have both signs (at worst it would be n eps).
//
// - Scores s and lse. With Same::kScores they are equal. Otherwise the bound of a score s_j, called
//   `score` as in agreement.h, is
//     (D + 2) eps |scale| |q_i| |k_j| + 4 eps (cap + |s_j| + |alibi_j|),
//   and that of lse (72 + 2 |lse|) eps + 2 max_j score_j. Additive: each path is given the results
//   that it saved itself. Projections of each unit change separately; where |a + b| exceeds these
//   changes by 9 (float64: 19), tanh is within 0.3 eps of 1 on both paths, and agreement.h allows
//   each tanh 8 eps.
// - w_j = exp(s_j - lse): r is (8 + 2 |s_j - lse|) eps, for the two exponentials and the product
//   with log2(e) that one of them may round, plus the bounds of s_j and lse. w_j changes by at most
//   w_j (e^r - 1), and by no more than 1, since on either path w_j <= 1. Where lse is large the
//   weights are divided by their sum (core/weight_factor.h). The sum changes by the mean of r, at
//   most 28 eps, as the mean of |log w_j| under w is below 8. If it is so far from 1 that only one
//   path may divide, w_j also changes by that distance. Weights near 2^-72 (float64: 2^-968) may be
//   0 on one path and not on the other; numbers below 1.2 of the smallest normal one may become 0.
// - dw_j = z g . v_j + dweights_j: a sum of E terms, sum_c |g_c v_jc| <= |g| |v_j|.
// - delta = g . out + sum_j w_j dweights_j - dlse: two sums, the change of every w_j, and, where
//   scores differ, the bound of out in agreement.h.
// - ds_j = w_j (dw_j - delta): w_j plus its change, times the changes of dw_j and delta; the change
//   of w_j times |dw_j - delta|; and 4 eps w_j (|dw_j| + |delta|).
// - d_product_j = ds_j slope_j, where slope_j is the derivative of s_j by the unscaled score (such
//   as q_i . k_j): 4 eps of d_product_j. Under a soft-cap the slope scale (1 - t^2) has an error of
//   6 eps |scale|, and, as |(1 - t^2)'| <= 0.77 / cap, one of 0.77 |scale| score / cap.
// - Additive: t is off by 8 eps, as in agreement.h, and 1 - t^2 by 16 eps: on one path t^2 gives 2
//   eps and two roundings; on the other 4 r (1 - r), whose derivative is 4 (1 - 2r), with r off by
//   2.5 eps, gives 10 eps and two roundings. A change of projections changes 1 - t^2 by up to 0.77
//   of it.
// - dleft, dright, the gradients of transformed queries and keys (reference/prepared.h): the
//   changes of the terms of sums over keys and queries, and the errors of these sums. A product
//   with W adds the error of its own sum.
// - dq_i = sum_j d_product_ij k_j, dk_j = sum_i d_product_ij q_i, dv_j = sum_i w_ij z_ij g_i,
//   dbias = sum ds, dalibi = sum -ds |i + o - j|, dsink = sum -w_sink delta: the changes of the
//   factors, and the errors of the sums.
// - Products of BF16: z w and d_product are rounded once more, by up to 2^-8 of them or to 0 where
//   they are subnormal; subnormal sums count as 0, too. Both paths round, and numbers next to a tie
//   move apart by a whole unit in the last place, 2^-7 of them. In tiles of tensor cores z w and
//   d_product are rounded to q's dtype, by up to 2^-8 of them for BF16 and 2^-11 for float16; there
//   the reference does not round.
// - One rounding to the array's dtype, and one more where it is accumulated.
//
// An element that belongs to no unmasked pair has the bound 0: it is exactly 0, or the number that
// was there before.
class GradientBounds {
 public:
  // How weights and gradients of scores are rounded before they are multiplied.
  enum class Rounded { kNot, kInProductsOfBFloat16, kInTiles };

  // `saved` comes from the reference; with kInProductsOfBFloat16, from one that has such products.
  GradientBounds(const BackwardCall& call, const Saved& saved, Same same,
                 Rounded rounded = Rounded::kNot);

  // Returns the first difference of `got` from `want`, or "". NaN must match NaN; with `overflows`
  // NaN and infinities match each other, because exponentials that became 0 make NaN of an
  // infinity.
  std::string check(const Gradients& got, const Gradients& want, bool overflows) const;

  // Whether some weight may differ by more than itself and more than 1e-3, so that the gradients of
  // its pair are hardly compared.
  bool ill_conditioned() const { return ill_conditioned_; }

 private:
  template <class T>
  class Pass;

  std::map<std::string, std::vector<double>> bounds_;
  Write write_;
  bool ill_conditioned_ = false;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_GRADIENT_AGREEMENT_H_
