// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_AGREEMENT_H_
#define QKV_TESTS_ATTENTION_AGREEMENT_H_

#include <set>
#include <string>
#include <string_view>

#include "tests/attention/random_call.h"

namespace qkv::test {

// The bound of the difference between two paths in sum_u v_u tanh(a_u + b_u), in units of eps
// sum |v|; derived below.
double tanh_error(Index U);

// The bounds of the difference between two paths, in the order in which differences arise. eps =
// 2^-23 (2^-52 for float64) is twice a rounding's largest relative error.
//
// - Products. Fused multiply-adds in one order are bit-identical. Without them each of D products
//   and sums of either path errs by eps/2 of sum_c |q_c k_c| <= |q| |k|, so that the difference is
//   at most (D + 2) eps |q| |k|: for scores of the dot product, and for projections.
// - Scores s. Bilinear: |q^T W| <= |q| |W|, and the projection's error adds to the product's.
//   Additive: a change of a + b changes tanh by no more than itself, and by no more than 2. One
//   path has t = tanh(a + b), off by eps; a + b is off by eps/2 |a + b|, which changes t by at most
//   0.45 eps/2. Another has 1 - 2 r, r = 1 / d, d = 1 + e^2a e^2b: its exponentials err by 2 eps
//   each at most, the products and sums of d and r by eps/2, r changes by at most 1/4 of the
//   relative error of e^2a e^2b, and the reciprocal errs by eps: 2 r is off by 5 eps. These errors
//   are together below 8 eps |v_u| in each unit; sums in chunks of n = min(U, 32) units add
//   4 sqrt(n) eps, and sums of chunks add U / 32 eps. The bound is tanh_error(U) eps sum |v|.
//   D + 2 has room for the rounding of the product with scale. A soft-cap's tanh errs by 4 eps
//   times the cap. Each later step (up to two mods, bias and ALiBi) rounds its result on either
//   path by eps/2 times the result: two paths move apart by at most eps (|s| + |added|), where
//   |added| is the size of all that has been added so far, including 0.05 |i - j| of a mod and
//   slope |i + o - j| of ALiBi. n steps give n eps (|s| + |added|). The numbers that they add are
//   equal on all paths, and so are the rows of the cosine. The whole bound is called `score`. It is
//   0 where products are bit-identical, except for the additive score, whose tanh differs.
// - e_j = exp(s_j - max): 4 eps for the two paths' exponentials, eps |s_j - max| for the product
//   with log2(e) that one path may round, and 2 `score`. Since w_j <= e_j, |s_j - max| is at most
//   |log w_j|, and the mean of |log w_j| under w is at most log Tk < 8.
// - The sum: 8 additions in each partial sum, 6 in the tree, 3 at each merge. So w_j has the
//   relative bound (48 + 2 |log w_j|) eps + e^(2 `score`) - 1, and lse the bound (72 + 2 |lse|) eps
//   + 2 `score`: the logarithm of a sum below 2^11 errs by 8 eps. A key that is left out or taken
//   twice, of Tk equal ones, changes both by 1/Tk > 9e-4: a hundred times the bound.
// - out: roundings of n = min(Tk, 512) multiply-adds have both signs: 4 sqrt(n) eps of max |v|
//   (at worst they would add up to n eps), besides the 32 eps of weights and sum.
// - Column sums: every weight errs as above; x -> -x log x is concave, so that for a sum c of Tq
//   weights the logarithms add up to at most c |log(c / Tq)|; 128 additions in a block give 4
//   sqrt(128) eps.
// - Exponentials below 1.2 times the smallest normal number may become 0 on one path. Times an
//   infinity in v, such an exponential gives NaN on one path and infinity on the other.
//
// Kernels of tensor cores need looser bounds: they sum products in the hardware's order, round
// weights to 16 bits before they multiply values, and multiply exponents by log2(e) before they
// subtract the maximum.
struct Looseness {
  double weights = 0;               // relative error of a weight in out
  bool products = false;            // products and exponents are not fused in one order
  std::set<std::string> results{};  // the results to compare; empty: all
};

struct Agreement {
  // Returns the first difference of `got` from `want` that exceeds its bound, such as "out at
  // [0,3]: got 1, want 2, bound 1e-6", or "" if there is none.
  static std::string check(const RandomCall& call, std::string_view path, const Results& got,
                           const Results& want, const Looseness& loose = {});
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_AGREEMENT_H_
