// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_ABOUT_DEMO_H_
#define QKV_TOOLS_ABOUT_DEMO_H_

#include <optional>
#include <string>

#include <qkv/view.h>

#include "about/seed_numbers.h"
#include "shell/console.h"

// The numbers printed in the four seed documents, recomputed.
SeedReport seed_numbers();

// Spellings of a day translated by the date model, and where it looked for each digit.
std::string three_dates(const Common& common);

// Attention over a long sequence, forward and backward: time, memory, what a query looked at, and
// what a custom score costs. Without `asked`: as many tokens as take about a second forward.
// Throws Cancelled after Ctrl-C.
std::string long_sequence(std::optional<qkv::Index> asked, const Common& common);

#endif  // QKV_TOOLS_ABOUT_DEMO_H_
