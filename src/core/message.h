// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_MESSAGE_H_
#define QKV_CORE_MESSAGE_H_

#include <locale>
#include <sstream>
#include <string>
#include <string_view>

#include <qkv/error.h>
#include <qkv/view.h>

namespace qkv::core {

// Concatenates the parts, as in text("D = ", 64); numbers are written as a stream prints them.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // 1024, not 1.024, whatever the program's locale
  (out << ... << parts);
  return out.str();
}

// Returns a view in the form of messages: "k [2,8,7,64]".
inline std::string shown(std::string_view name, const ConstView& view) {
  return text(name, " ", to_string(view.shape()));
}

}  // namespace qkv::core

#endif  // QKV_CORE_MESSAGE_H_
