// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_NUMBERS_H_
#define QKV_TEXT_NUMBERS_H_

#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string_view>

namespace qkv::app {

// Parses the whole of `text` as a finite number in the C locale. Returns none for anything else:
// "12x", "", " 1", "+1", "nan", "inf" and values out of T's range ("1e999").
template <class T>
  requires std::integral<T> || std::floating_point<T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::floating_point<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

}  // namespace qkv::app

#endif  // QKV_TEXT_NUMBERS_H_
