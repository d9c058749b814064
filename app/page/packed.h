// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_PACKED_H_
#define QKV_PAGE_PACKED_H_

#include <string>
#include <string_view>

// Bytes as text for an HTML document.
namespace qkv::app::page {

// Base64 of RFC 4648 with padding.
std::string base64(std::string_view bytes);

// Compresses bytes to the format `deflate` without header (RFC 1951), and returns that as base64.
std::string deflated(std::string_view bytes);

// The bytes of a text of lower-case hexadecimal digits, such as a digest.
std::string from_hex(std::string_view digits);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_PACKED_H_
