// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_SEED_EXPRESSIONS_H_
#define QKV_COMMANDS_ABOUT_SEED_EXPRESSIONS_H_

#include <string_view>
#include <vector>

// The names of all expressions that the table tests/seed_numbers.tsv may use. The table lists the
// numbers printed in the documents of docs/seeds.md.
std::vector<std::string_view> seed_expressions();

// The numbers of one expression, computed in float64, in C order. "NAME[2]" is entry 2 of the first
// axis of NAME. Throws std::runtime_error if there is no such name or entry.
std::vector<double> seed_values(std::string_view expression);

#endif  // QKV_COMMANDS_ABOUT_SEED_EXPRESSIONS_H_
