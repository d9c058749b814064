// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ALTERNATIVES_H_
#define QKV_ALTERNATIVES_H_

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <variant>

// Scores, masks and diagonals are variants whose alternatives A have names, A::kName. The functions
// here go through the alternatives of such a variant.
namespace qkv {

// Calls f.template operator()<A>() for each alternative A, in the variant's order.
template <class Variant, class F>
constexpr void for_each_alternative(F&& f) {
  [&]<std::size_t... n>(std::index_sequence<n...>) {
    (f.template operator()<std::variant_alternative_t<n, Variant>>(), ...);
  }(std::make_index_sequence<std::variant_size_v<Variant>>());
}

// The names A::kName of all alternatives, in the variant's order.
template <class Variant>
constexpr auto names_of() {
  std::array<std::string_view, std::variant_size_v<Variant>> names;
  std::size_t n = 0;
  for_each_alternative<Variant>([&]<class A>() { names[n++] = A::kName; });
  return names;
}

// The name of the alternative that is held.
template <class... A>
constexpr std::string_view name_of(const std::variant<A...>& v) {
  return std::visit([]<class Held>(const Held&) { return std::string_view(Held::kName); }, v);
}

}  // namespace qkv

#endif  // QKV_ALTERNATIVES_H_
