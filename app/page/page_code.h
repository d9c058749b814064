// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_PAGE_CODE_H_
#define QKV_PAGE_PAGE_CODE_H_

#include <string_view>

// The code of the page, which the build generates from the files in app/page (embed.cmake).
namespace qkv::app::page {

extern const std::string_view kTemplate;      // page.html
extern const std::string_view kStyle;         // page.css
extern const std::string_view kScript;        // the .js files
extern const std::string_view kStyleDigest;   // SHA-256 of the style, hexadecimal
extern const std::string_view kScriptDigest;  // SHA-256 of the script

}  // namespace qkv::app::page

#endif  // QKV_PAGE_PAGE_CODE_H_
