// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_INDICES_H_
#define QKV_EXPRESSIONS_INDICES_H_

#include <string_view>

#include "core/problem.h"
#include "expressions/places.h"
#include "expressions/program.h"

namespace qkv::expressions {

// Throws Error of `function` about `argument` if an index of a captured array lies outside of it
// for a pair, masked or not, or an integer is divided by 0. Interval arithmetic proves most
// indices; the others are evaluated for all pairs: those of `p`, if it is given, else `pairs`, from
// b = h = i = j = 0 on.
void check_indices(std::string_view function, std::string_view argument, const Program& program,
                   const Pairs& pairs, const core::Problem* p);

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_INDICES_H_
