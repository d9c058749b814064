// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_INDICES_H_
#define QKV_EXPRESSIONS_INDICES_H_

#include <string_view>

#include "core/problem.h"
#include "expressions/places.h"
#include "expressions/program.h"

namespace qkv::expressions {

// Throws Error of `function` about `argument` if, for any pair, masked or not, an index of a
// captured array lies outside the array or an integer is divided by 0. Interval arithmetic proves
// most indices and divisors valid. The others are evaluated, with scores of 0, for all pairs of
// `p`, or, if p is null, for `pairs`, which must then begin at b = h = i = j = 0.
void check_indices(std::string_view function, std::string_view argument, const Program& program,
                   const Pairs& pairs, const core::Problem* p);

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_INDICES_H_
