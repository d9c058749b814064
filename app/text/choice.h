// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHOICE_H_
#define QKV_TEXT_CHOICE_H_

#include <string_view>

namespace qkv::app {

// A name that a user may type, and the value it stands for.
template <class Value>
struct Choice {
  std::string_view name;
  Value value;
};

}  // namespace qkv::app

#endif  // QKV_TEXT_CHOICE_H_
