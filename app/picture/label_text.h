// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_LABEL_TEXT_H_
#define QKV_PICTURE_LABEL_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

#include "text/text.h"

namespace qkv::app::picture {

// The text between isolation marks if it has right-to-left letters, so that it does not
// reorder its neighbours; else unchanged.
std::string isolated(std::string_view text);

enum class Side { kLeft, kRight };

// The text, isolated, aligned to that side of a number of terminal columns.
QKV_API std::string padded(std::string_view text, int width, Side side);

// Replaces composed emoji by their first component. Terminals disagree about the width of the
// whole, and one row of a map must not be out of line with the others.
std::string simple_emoji(std::string_view text);

// Replaces every non-ASCII character by "?", keeping its width.
std::string in_ascii(std::string_view text);

// The text in lines no longer than the limit, broken between words if possible. `measure`
// returns a character's length.
std::vector<std::string> wrapped(std::string_view text, double limit,
                                 double (*measure)(const Cluster&));

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_LABEL_TEXT_H_
