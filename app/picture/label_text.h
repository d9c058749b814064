// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_LABEL_TEXT_H_
#define QKV_PICTURE_LABEL_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

#include "text/text.h"

namespace qkv::app::picture {

// Puts a text that has right-to-left letters between isolation marks, so that it does not reorder
// its neighbours; other text is unchanged.
std::string isolated(std::string_view text);

enum class Side { kLeft, kRight };

// The isolated text, aligned to one side of `width` terminal columns.
QKV_API std::string padded(std::string_view text, int width, Side side);

// Replaces composed emoji by their first component. Terminals disagree about the width of the
// composition, and all rows of a map must line up.
std::string simple_emoji(std::string_view text);

// Replaces every non-ASCII character by "?", keeping its width.
std::string in_ascii(std::string_view text);

// Breaks the text into lines no longer than the limit, between words if possible. `measure` returns
// a character's length in the unit of the limit.
std::vector<std::string> wrapped(std::string_view text, double limit,
                                 double (*measure)(const Cluster&));

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_LABEL_TEXT_H_
