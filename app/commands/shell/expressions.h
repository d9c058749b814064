// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_EXPRESSIONS_H_
#define QKV_COMMANDS_SHELL_EXPRESSIONS_H_

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <qkv/error.h>
#include <qkv/options.h>
#include <qkv/view.h>

#include "commands/shell/array_store.h"
#include "commands/shell/command.h"

// The options --score-mod, --mask-mod and --with: a score and a mask as expressions, and the arrays
// that they read.

// The lines of --help that say how expressions are written.
inline constexpr const char* kExpressionHelp =
    R"(--score-mod and --mask-mod are expressions as in Python: the score s (in --score-mod), the
indices b, h, i and j of batch entry, head, query and key, the numbers Tq and Tk of queries and
keys; + - * / // %, comparisons, and, or, not; where(condition, x, y), abs, min, max, exp, log,
sqrt, tanh, sin, cos, floor, int, float; elements of arrays that --with names:
  --score-mod 's - slope[h] * abs(i - j)' --with slope=slopes.npy --mask-mod 'i // 16 == j // 16')";

struct ExpressionOptions {
  std::optional<std::string> score_mod{};  // texts of expressions
  std::optional<std::string> mask_mod{};
  std::vector<std::string> with{};  // texts "name=FILE" or "name=FILE:array"
};

// Adds --score-mod, --mask-mod and --with. `options` must outlive the parsing of the command line.
void add_expressions(const Command& command, ExpressionOptions& options);

// An array that expressions read.
struct ExpressionArray {
  std::string name{};
  std::string spec{};       // where it was read: FILE or FILE:array
  qkv::ConstView values{};  // in the ArrayStore
};

// A score function and a mask function, each given or not, and all arrays of --with.
struct Expressions {
  std::vector<ExpressionArray> arrays{};
  std::string score_text{};           // Expression::text() of the score function; "" without one
  std::string mask_text{};            // Expression::text() of the mask function; "" without one
  std::vector<qkv::ScoreMod> mods{};  // the score function, for Options::mods
  std::vector<qkv::Mask> masks{};     // the mask function, for Options::masks

  bool given() const { return !mods.empty() || !masks.empty(); }
};

// Reads the arrays and the expressions. `store` must outlive the result. Throws UsageError for a
// wrong expression (with the column, if its text is wrong), for --with without an expression, and
// for two arrays of one name; InputError for an array that cannot be read.
Expressions read_expressions(const ExpressionOptions& options, ArrayStore& store);

// The settings that reports show: with, score_mod and mask_mod, as far as they are given.
nlohmann::ordered_json settings_of(const Expressions& expressions);

// Throws UsageError with the option's name if error.argument() is an expression, as for an index
// outside of its array. Returns for any other error.
void refuse_expression(const qkv::Error& error);

#endif  // QKV_COMMANDS_SHELL_EXPRESSIONS_H_
