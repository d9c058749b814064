// SPDX-License-Identifier: Apache-2.0
#include "tests/errors/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

#include "core/integers.h"
#include "core/shapes.h"
#include "core/storage.h"

namespace qkv::test {
namespace {

// The most elements for which an array may take memory, more than any row of the table needs.
// Larger arrays repeat elements by a stride of 0.
constexpr Index kLargestArray = Index{1} << 20;
// The byte that fills the memory of results before a call: in no type does it make 0 or 1, which a
// call may write.
constexpr int kPattern = 0x5A;

template <class T>
T parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw TableError("\"" + std::string(text) + "\" is no number that fits");
  }
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Reads a list such as "[2,3]".
Dims parse_dims(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
    throw TableError("\"" + std::string(text) + "\" is no list like [2,3]");
  }
  std::vector<Index> values;
  for (const std::string& value : split(text.substr(1, text.size() - 2), ',')) {
    values.push_back(parse_number<Index>(value));
  }
  if (values.size() > static_cast<std::size_t>(kMaxRank)) {
    throw TableError("\"" + std::string(text) + "\" is longer than a list may be");
  }
  return Dims(std::span<const Index>(values));
}

DType parse_dtype(std::string_view text) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"f64", DType::kFloat64}, {"f32", DType::kFloat32}, {"bf16", DType::kBFloat16},
      {"f16", DType::kFloat16}, {"bool", DType::kBool},   {"i8", DType::kInt8},
      {"i16", DType::kInt16},   {"i32", DType::kInt32},   {"i64", DType::kInt64},
      {"u8", DType::kUInt8},    {"u16", DType::kUInt16},  {"u32", DType::kUInt32},
      {"u64", DType::kUInt64},  {"none", DType::kNone},   {"c128", DType::kComplex128},
  };
  for (const auto& [name, dtype] : kNames) {
    if (name == text) return dtype;
  }
  throw TableError("\"" + std::string(text) + "\" is no dtype");
}

// Returns the strides of C order. For negative sizes, or where a product of sizes overflows, any
// strides will do.
Dims default_strides(const Dims& shape) {
  Dims strides = shape;
  std::optional<Index> stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride.value_or(1);
    stride = core::checked_multiply(strides[axis], std::max<Index>(shape[axis], 1));
  }
  return strides;
}

// Removes from `text` the part before the first of the characters `marks`, and returns this part.
std::string_view take_until(std::string_view& text, std::string_view marks) {
  const std::size_t end = std::min(text.find_first_of(marks), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end);
  return part;
}

// The number of elements from the lowest to the highest address of an array, and the position of
// the array's first element among them. extent_of() returns nullopt if they are too many to
// allocate.
struct Extent {
  Index elements = 1;
  Index first = 0;
};
std::optional<Extent> extent_of(const ArrayText& text) {
  Extent extent;
  if (std::any_of(text.shape.begin(), text.shape.end(), [](Index size) { return size < 1; })) {
    return Extent{0, 0};
  }
  for (int axis = 0; axis < text.shape.rank(); ++axis) {
    const auto reach = core::checked_multiply(text.shape[axis] - 1, text.strides[axis]);
    if (!reach || std::abs(*reach) > kLargestArray) return std::nullopt;
    extent.elements += std::abs(*reach);
    if (*reach < 0) extent.first -= *reach;
  }
  if (extent.elements > kLargestArray) return std::nullopt;
  return extent;
}

// Writes values in C order.
void write_values(const View& view, const std::vector<std::string>& values) {
  std::size_t n = 0;
  core::visit_dtype(view.dtype(), [&]<class T>(T*) {
    core::for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& offset, const Dims&) {
      T& to = static_cast<T*>(view.data())[offset[0]];
      const std::string& text = values[n++];
      if constexpr (is_integer(dtype_of<T>)) {
        to = parse_number<T>(text);
      } else {
        to = core::from_accumulator<T>(parse_number<double>(text));
      }
    });
  });
}

void write_ones(Tensor& memory) {
  const Index count = memory.element_count();
  if (is_integer(memory.dtype())) return;  // integers stay 0
  for (Index n = 0; n < count; ++n) core::store(memory.dtype(), memory.view().data(), n, 1.0);
}

}  // namespace

ArrayText parse_array(std::string_view text) {
  ArrayText array;
  std::string_view rest = text;
  array.dtype = parse_dtype(take_until(rest, "["));
  array.shape = parse_dims(take_until(rest, "/@{"));
  array.strides = default_strides(array.shape);
  if (rest.starts_with('/')) {
    rest.remove_prefix(1);
    array.strides = parse_dims(take_until(rest, "@{"));
  }
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    std::string_view place = take_until(rest, "{");
    array.place = take_until(place, "+");
    if (!place.empty()) array.shift = parse_number<Index>(place.substr(1));
    if (array.place.empty()) throw TableError("\"" + std::string(text) + "\" has an empty place");
  }
  if (rest.empty()) return array;
  if (rest.size() < 3 || rest.back() != '}') {
    throw TableError("\"" + std::string(text) + "\" does not end as an array does");
  }
  array.values = split(rest.substr(1, rest.size() - 2), ',');
  return array;
}

Arguments::Arguments(std::string_view call) {
  std::vector<std::string> words = split(call, ' ');
  if (words.empty()) throw TableError("the call is empty");
  function_ = words[0];
  for (std::size_t n = 1; n < words.size(); ++n) {
    const std::size_t equals = words[n].find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw TableError("\"" + words[n] + "\" is no name=value");
    }
    const std::string name = words[n].substr(0, equals);
    if (has(name)) throw TableError("\"" + name + "\" stands twice in the call");
    all_.emplace_back(name, words[n].substr(equals + 1));
  }
}

const std::string* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : all_) {
    if (key == name) return &value;
  }
  return nullptr;
}

const std::string* Arguments::use(std::string_view name) {
  used_.emplace_back(name);
  return find(name);
}

std::string Arguments::word(std::string_view name) {
  const std::string* value = use(name);
  return value == nullptr ? "" : *value;
}

double Arguments::number(std::string_view name, double fallback) {
  const std::string* value = use(name);
  return value == nullptr ? fallback : parse_number<double>(*value);
}

Index Arguments::whole(std::string_view name, Index fallback) {
  const std::string* value = use(name);
  return value == nullptr ? fallback : parse_number<Index>(*value);
}

Dims Arguments::dims(std::string_view name) {
  const std::string* value = use(name);
  if (value == nullptr) throw TableError(std::string(name) + " is missing");
  return parse_dims(*value);
}

ConstView Arguments::input(std::string_view name) { return array(name, Use::kInput); }
View Arguments::output(std::string_view name) { return array(name, Use::kOutput); }

View Arguments::array(std::string_view name, Use how) {
  const std::string* value = use(name);
  if (value == nullptr || *value == "absent") return {};
  const ArrayText text = parse_array(*value);
  void* first = place(std::string(name), text, how);
  View view;
  try {
    view = View(first, text.dtype, text.shape, text.strides);
  } catch (const Error& error) {
    throw TableError(std::string(name) + " cannot be made: " + error.what());
  }
  if (text.values.empty()) return view;
  if (view.element_count() != static_cast<Index>(text.values.size())) {
    throw TableError(std::string(name) + " has " + std::to_string(view.element_count()) +
                     " elements but " + std::to_string(text.values.size()) + " values");
  }
  write_values(view, text.values);
  return view;
}

std::pair<void*, ArrayText> Arguments::parts(std::string_view name) {
  const std::string* value = use(name);
  if (value == nullptr) throw TableError(std::string(name) + " is missing");
  const ArrayText text = parse_array(*value);
  alignas(std::max_align_t) static std::byte nothing[2]{};
  if (text.place == "null") return {nullptr, text};
  return {text.place == "odd" ? &nothing[1] : &nothing[0], text};
}

void* Arguments::place(const std::string& name, const ArrayText& text, Use how) {
  const auto found = placed_.find(name);
  if (found != placed_.end()) return found->second.first;
  const auto size = static_cast<Index>(size_of(text.dtype));
  if (!text.place.empty()) {
    const std::string* other = find(text.place);
    if (other == nullptr || !parse_array(*other).place.empty()) {
      throw TableError(name + " lies in " + text.place + ", which has no memory of its own");
    }
    void* first = place(text.place, parse_array(*other), Use::kInput);
    first = static_cast<std::byte*>(first) + text.shift * size;
    return placed_.emplace(name, Placed{{}, first}).first->second.first;
  }
  const std::optional<Extent> extent = extent_of(text);
  if (!extent) throw TableError(name + " takes more memory than a row may");
  Placed placed{Tensor(text.dtype, Dims(extent->elements)), nullptr};
  void* memory = placed.owned.view().data();
  if (how == Use::kOutput && extent->elements > 0) {
    std::memset(memory, kPattern, static_cast<std::size_t>(extent->elements * size));
  } else {
    write_ones(placed.owned);
  }
  if (memory != nullptr) placed.first = static_cast<std::byte*>(memory) + extent->first * size;
  return placed_.emplace(name, std::move(placed)).first->second.first;
}

void Arguments::expect_all_used() const {
  for (const auto& [name, value] : all_) {
    if (std::find(used_.begin(), used_.end(), name) == used_.end()) {
      throw TableError(function_ + " has no argument " + name);
    }
  }
}

Memory Arguments::memory() const {
  Memory memory;
  for (const auto& [name, placed] : placed_) {
    const auto* first = static_cast<const std::byte*>(placed.owned.view().data());
    const auto bytes =
        static_cast<std::size_t>(placed.owned.element_count()) * size_of(placed.owned.dtype());
    memory[name].assign(first, first + bytes);
  }
  return memory;
}

}  // namespace qkv::test
