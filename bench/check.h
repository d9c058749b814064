// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_CHECK_H_
#define QKV_BENCH_CHECK_H_

#include <string>
#include <vector>

#include "problem.h"

namespace qkv::bench {

// Returns the largest magnitude of an array's numbers.
double most_of(const ConstView& view);
// Returns a text with the first pair of numbers that differ by more than `bound` or of which one is
// NaN; "" if there is none.
std::string difference(const ConstView& got, const ConstView& want, double bound);

// Compares results, in the order of Problem::results(), with those of the path "reference". Checks
// all numbers if the problem is small or its options do not allow a part of it to be computed
// alone. Otherwise it checks the results of some queries and, for gradients, of some keys, in the
// first batch entry and, unless options need indices, in the last. Returns the first difference, or
// "".
std::string fault_of(const Problem& problem, const std::vector<View>& results);

}  // namespace qkv::bench

#endif  // QKV_BENCH_CHECK_H_
