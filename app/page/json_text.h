// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_JSON_TEXT_H_
#define QKV_PAGE_JSON_TEXT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

// Texts for an HTML document. The JSON has no `<`, `>` or `&`, so that nothing in it can end the
// element around it.
namespace qkv::app::page {

// A string, after printable() has replaced what cannot be shown.
std::string json_of(std::string_view text);
// A number, or null if it is not finite.
std::string json_of(double number);
std::string json_of(const std::vector<std::string>& texts);
std::string json_of(const std::vector<Index>& numbers);

// A JSON list of values that are JSON already.
std::string json_list(std::span<const std::string> values);

// Text in which the characters that HTML interprets are written as entities.
std::string html_of(std::string_view text);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_JSON_TEXT_H_
