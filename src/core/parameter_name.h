// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_PARAMETER_NAME_H_
#define QKV_CORE_PARAMETER_NAME_H_

#include <array>
#include <cstddef>
#include <string_view>

namespace qkv::core {

// The name of a parameter in messages, as in C++: "additive.wq", from "additive" and "Wq". The
// class does not allocate, for calls that must not.
class ParameterName {
 public:
  ParameterName(std::string_view of, std::string_view name) {
    add(of);
    add(".");
    for (const char c : name) put(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator std::string_view() const noexcept { return {text_.data(), length_}; }

 private:
  void put(char c) {
    if (length_ < text_.size()) text_[length_++] = c;
  }
  void add(std::string_view part) {
    for (const char c : part) put(c);
  }

  std::array<char, 63> text_{};
  std::size_t length_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_PARAMETER_NAME_H_
