// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_KNOWN_KEYS_H_
#define QKV_EXPRESSIONS_KNOWN_KEYS_H_

#include <memory>

#include "core/masks.h"
#include "expressions/program.h"

// The keys that a mask allows, as far as they are known before it is evaluated for each pair.
namespace qkv::expressions {

// Solves a mask's comparisons for the key: finds, for each query, the range from the first to the
// last key that the mask may allow. A comparison is solved if the difference of its integers never
// falls, or never rises, from key to key, as with sums and quotients of the key and sorted arrays,
// also inside abs, min and max. Returns null if every range has all keys and not all are exact.
std::shared_ptr<const core::RowRanges> solved_for_keys(const Program& mask, const core::Problem& p);

// Classifies tiles of pairs by interval arithmetic. Returns null if nothing is known about any
// tile, for packed sequences and pages, and for so few queries that evaluating the mask costs less.
std::shared_ptr<const detail::TileClasses> classified_by_ranges(const Program& mask,
                                                                const core::Problem& p);

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_KNOWN_KEYS_H_
