// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/json_values.h"

#include <array>
#include <charconv>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/utf8.h>
#include <qkv/tensor.h>

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;

template <class T>
constexpr bool kIsReal = std::is_floating_point_v<T> || std::is_same_v<T, qkv::BFloat16> ||
                         std::is_same_v<T, qkv::Float16>;

// The double nearest to the shortest decimal that parses to this float32: 0.1, not 0.10000000149.
double shortest(float value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  double result = 0;
  std::from_chars(digits.data(), end, result);
  return result;
}

template <class T>
Json element(const T& value) {
  if constexpr (std::is_same_v<T, std::complex<double>>) {
    return {json_number(value.real()), json_number(value.imag())};
  } else if constexpr (std::is_same_v<T, double>) {
    return json_number(value);
  } else if constexpr (kIsReal<T>) {
    const auto single = static_cast<float>(value);
    return json_number(std::isfinite(single) ? shortest(single) : static_cast<double>(single));
  } else {
    return value;
  }
}

// The elements of axes `axis` and later as nested lists. `data` points to the first of them, in C
// order, and is advanced past the last.
template <class T>
Json nested(const qkv::Dims& shape, int axis, const T*& data) {
  if (axis == shape.rank()) return element(*data++);
  Json list = Json::array();
  for (Index i = 0; i < shape[axis]; ++i) list.push_back(nested(shape, axis + 1, data));
  return list;
}

Json labelled(const qkv::Dims& shape, std::string_view dtype, Json data) {
  Json sizes = Json::array();
  for (const Index size : shape) sizes.push_back(size);
  Json result;
  result["shape"] = std::move(sizes);
  result["dtype"] = dtype;
  result["data"] = std::move(data);
  return result;
}

// JSON text on one line. The control characters DEL and C1, which JSON allows unescaped, are
// escaped here because a terminal acts on them.
std::string compact(const Json& value) {
  const std::string dumped = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  std::size_t copied = 0;
  for (std::size_t at = 0; at < dumped.size(); ++at) {
    const auto byte = static_cast<unsigned char>(dumped[at]);
    const auto next = static_cast<unsigned char>(at + 1 < dumped.size() ? dumped[at + 1] : '\0');
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next <= 0x9F;
    if (byte != 0x7F && !is_c1) continue;
    text += dumped.substr(copied, at - copied) + fmt::format("\\u{:04x}", is_c1 ? next : byte);
    if (is_c1) ++at;
    copied = at + 1;
  }
  return text + dumped.substr(copied);
}

}  // namespace

Json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json json_data(const qkv::ConstView& view) {
  const qkv::Tensor copy = view.is_contiguous() ? qkv::Tensor() : qkv::contiguous(view);
  const qkv::ConstView whole = copy.given() ? copy.view() : view;
  switch (whole.dtype()) {
#define QKV_NESTED(name, type, text)                           \
  case qkv::DType::name: {                                     \
    const auto* data = static_cast<const type*>(whole.data()); \
    return nested(whole.shape(), 0, data);                     \
  }
    QKV_FOR_EACH_DTYPE(QKV_NESTED)
#undef QKV_NESTED
    case qkv::DType::kQ8:  // no file format holds q8 arrays
    case qkv::DType::kNone:
      break;
  }
  return nullptr;
}

Json json_array(const qkv::app::ArrayView& array) {
  if (const auto* view = std::get_if<qkv::ConstView>(&array)) {
    return labelled(view->shape(), qkv::name_of(view->dtype()), json_data(*view));
  }
  const qkv::app::Strings& strings = *std::get<const qkv::app::Strings*>(array);
  const std::string* data = strings.values.data();
  return labelled(strings.shape, "text", nested(strings.shape, 0, data));
}

std::string settings_text(const Json& settings) {
  std::string text;
  for (const auto& [name, value] : settings.items()) {
    text += text.empty() ? "" : ", ";
    text += name;
    if (value.is_boolean()) continue;
    if (value.is_string()) text += " " + qkv::app::on_one_line(value.get<std::string>());
    if (value.is_number_float()) text += fmt::format(" {:.6g}", value.get<double>());
    if (value.is_number_integer()) text += fmt::format(" {}", value.dump());
    if (value.is_array()) text += " " + value.dump();
    if (!value.is_object()) continue;
    for (const auto& [key, part] : value.items()) {
      text += qkv::app::on_one_line(fmt::format(" {}={}", key, part.get<std::string>()));
    }
  }
  return text;
}

std::string json_text(const Json& value) {
  if (!value.is_object() || value.empty()) return compact(value) + "\n";
  std::string text = "{";
  for (const auto& [name, member] : value.items()) {
    text += (text.size() == 1 ? "\n  " : ",\n  ") + compact(name) + ": " + compact(member);
  }
  return text + "\n}\n";
}
