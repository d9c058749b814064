// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_EXPRESSION_TEXT_H_
#define QKV_COMMANDS_SHELL_EXPRESSION_TEXT_H_

#include <map>
#include <string>
#include <string_view>

#include <qkv/expression.h>

// The purpose of an expression: a new score, or a mask, whose errors do not list the score s.
enum class ExpressionKind { kScore, kMask };

// Reads an expression in Python's syntax, such as "s - slope[h] * abs(i - j)": the score s, the
// indices b, h, i, j, the lengths Tq and Tk, and arrays by their names. Throws UsageError with
// `option` and the column for a syntax error, an unknown name or an operand of the wrong type.
qkv::Expression read_expression(const std::string& option, std::string_view text,
                                ExpressionKind kind,
                                const std::map<std::string, qkv::Captured>& arrays);

// Whether a text is a name that an array may have in an expression.
bool is_array_name(std::string_view text);

#endif  // QKV_COMMANDS_SHELL_EXPRESSION_TEXT_H_
