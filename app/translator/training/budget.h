// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_BUDGET_H_
#define QKV_TRANSLATOR_TRAINING_BUDGET_H_

#include <optional>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// The progress of training over all runs in the folder.
struct Spent {
  Index epochs = 0;  // complete epochs
  Index updates = 0;
  double seconds = 0;
};

// The limits of training, which ends when the first of them is reached.
struct Budget {
  std::optional<Index> epochs{};
  std::optional<Index> updates{};
  std::optional<double> seconds{};
};

// Parses a budget such as "10e,5000u,30m": whole epochs (e) and updates (u), and a time in seconds
// (s), minutes (m) or hours (h), each at most once, positive and at most 3.2e13 (a million years in
// seconds). Throws Error (argument "budget") that says what is wrong.
QKV_API Budget parse_budget(std::string_view text);
// A budget as text, such as "10e,5000u,1800s", which parse_budget() reads; "" without limits.
QKV_API std::string to_string(const Budget& budget);

bool is_spent(const Budget& budget, const Spent& spent);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_BUDGET_H_
