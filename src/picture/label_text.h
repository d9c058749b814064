// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_LABEL_TEXT_H_
#define QKV_PICTURE_LABEL_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/text.h>

namespace qkv::app::picture {

// The text between marks that keep its letters from turning their neighbours around, when it has
// letters written from the right; else as it is.
std::string isolated(std::string_view text);

enum class Side { kLeft, kRight };

// The text, isolated, at that side of so many columns of a terminal.
std::string padded(std::string_view text, int width, Side side);

// Emoji that are made of several by the first of them. Terminals disagree about the width of the
// whole, and one row of a map must not stand beside the others.
std::string simple_emoji(std::string_view text);

// Every character beyond ASCII as "?", as wide as it was.
std::string in_ascii(std::string_view text);

// The text in lines no longer than the limit, cut between words where they allow it. `measure`
// gives a character's length.
std::vector<std::string> wrapped(std::string_view text, double limit,
                                 double (*measure)(const Cluster&));

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_LABEL_TEXT_H_
