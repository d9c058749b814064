// SPDX-License-Identifier: Apache-2.0
#include "io/text_json.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

namespace qkv::io {
namespace {

// Takes the events of the JSON parser; false ends it.
class TextEvents {
 public:
  app::Strings result() {
    for (int axis = 0; axis < rank_; ++axis) {
      result_.shape.push_back(sizes_[static_cast<std::size_t>(axis)]);
    }
    return std::move(result_);
  }

  bool start_array(std::size_t) {
    if (depth_ == counts_.size() || static_cast<int>(depth_) == rank_)
      return false;  // strings stand here
    counts_[depth_++] = 0;
    return true;
  }
  bool end_array() {
    const Index count = counts_[--depth_];
    if (count == 0 && !strings_stand_at(depth_ + 1)) return false;
    if (sizes_[depth_] >= 0 && sizes_[depth_] != count) return false;
    sizes_[depth_] = count;
    if (depth_ > 0) ++counts_[depth_ - 1];
    return true;
  }
  bool string(std::string& value) {
    if (!strings_stand_at(depth_)) return false;
    if (depth_ > 0) ++counts_[depth_ - 1];
    result_.values.push_back(std::move(value));
    return true;
  }
  static bool start_object(std::size_t) { return false; }
  static bool end_object() { return false; }
  static bool key(std::string&) { return false; }
  static bool number_unsigned(std::uint64_t) { return false; }
  static bool number_integer(std::int64_t) { return false; }
  static bool number_float(double, const std::string&) { return false; }
  static bool boolean(bool) { return false; }
  static bool null() { return false; }
  static bool binary(nlohmann::json::binary_t&) { return false; }
  template <class Exception>
  static bool parse_error(std::size_t, const std::string&, const Exception&) {
    return false;
  }

 private:
  // All strings are equally deep: the first one, or the first empty array, says how deep.
  bool strings_stand_at(std::size_t depth) {
    if (rank_ < 0) rank_ = static_cast<int>(depth);
    return rank_ == static_cast<int>(depth);
  }

  app::Strings result_{};
  int rank_ = -1;                         // arrays around a string, once known
  std::size_t depth_ = 0;                 // arrays open now
  std::array<Index, kMaxRank> counts_{};  // elements so far of each of them
  std::array<Index, kMaxRank> sizes_ = {-1, -1, -1, -1, -1, -1, -1, -1};
};

void add_json(const app::Strings& strings, int axis, std::size_t& next, std::string& json) {
  if (axis == strings.shape.rank()) {
    json += nlohmann::json(strings.values[next++]).dump();
    return;
  }
  json += '[';
  for (Index i = 0; i < strings.shape[axis]; ++i) {
    if (i > 0) json += ',';
    add_json(strings, axis + 1, next, json);
  }
  json += ']';
}

}  // namespace

std::string text_to_json(const app::Strings& strings) {
  std::string json;
  std::size_t next = 0;
  add_json(strings, 0, next, json);
  return json;
}

std::optional<app::Strings> text_from_json(std::string_view json) {
  if (!json.starts_with('[') && !json.starts_with('"')) return std::nullopt;
  TextEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) return std::nullopt;
  return events.result();
}

}  // namespace qkv::io
