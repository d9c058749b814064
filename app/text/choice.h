// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHOICE_H_
#define QKV_TEXT_CHOICE_H_

#include <string_view>

namespace qkv::app {

// A name a user may type, and its value.
template <class Value>
struct Choice {
  std::string_view name;
  Value value;
};

}  // namespace qkv::app

#endif  // QKV_TEXT_CHOICE_H_
