// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/array_file.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/array_formats.h"
#include "files/byte_source.h"
#include "files/safetensors_header.h"
#include "files/text_json.h"

namespace qkv::files {
namespace {

static_assert(std::endian::native == std::endian::little,
              "arrays are read and written byte for byte");

constexpr std::size_t kTensorAlignment = 8;

// Throws Error for text that the metadata cannot hold.
void check_text(const std::string& name, const app::Strings& strings) {
  const Dims& shape = strings.shape;
  const auto refuse = [&](const std::string& detail) {
    throw Error("write_safetensors", name, detail);
  };
  if (element_count(shape) != static_cast<Index>(strings.values.size())) {
    refuse(fmt::format("has {} texts for shape {}", strings.values.size(), to_string(shape)));
  }
  Index lists = 1;   // JSON values at the current depth: lists, or texts after the last axis
  Index values = 1;  // JSON values in total
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool last = axis + 1 == shape.rank();
    if (shape[axis] == 0 && !last) refuse("is empty text of shape " + to_string(shape));
    constexpr auto kMost = static_cast<Index>(kMostTextValues);
    if (shape[axis] > (kMost - values) / lists) {
      refuse(
          fmt::format("is text of shape {}, more than {} values of JSON", to_string(shape), kMost));
    }
    values += lists *= shape[axis];
  }
  for (const std::string& value : strings.values) {
    if (!app::from_utf8(value)) refuse("must be UTF-8, got " + app::quoted(value));
  }
}

std::size_t byte_size(const ConstView& view) {
  return static_cast<std::size_t>(view.element_count()) * size_of(view.dtype());
}

// The numeric arrays in the order of their data: the widest elements come first, which aligns every
// array without gaps.
std::vector<const app::NamedView*> in_file_order(std::span<const app::NamedView> arrays) {
  std::vector<const app::NamedView*> order;
  for (const app::NamedView& array : arrays) {
    if (std::holds_alternative<ConstView>(array.array)) order.push_back(&array);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const app::NamedView* a, const app::NamedView* b) {
                     return size_of(std::get<ConstView>(a->array).dtype()) >
                            size_of(std::get<ConstView>(b->array).dtype());
                   });
  return order;
}

// Builds the header: the length of the JSON object, and the object. The object lists the arrays in
// the order of `arrays`, and places their data in the order of `order`.
std::string header_of(std::span<const app::NamedView> arrays,
                      const std::vector<const app::NamedView*>& order) {
  nlohmann::ordered_json text = nlohmann::ordered_json::object();
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const app::NamedView& array : arrays) {
    if (array.name == kSafetensorsMetadata) {
      throw Error("write_safetensors", array.name, "is a name that the format reserves");
    }
    if (const auto* const strings = std::get_if<const app::Strings*>(&array.array)) {
      check_text(array.name, **strings);
      text[array.name] = text_to_json(**strings);
    }
  }
  if (!text.empty()) header[std::string(kSafetensorsMetadata)] = text;
  for (const app::NamedView& array : arrays) {
    const auto* const view = std::get_if<ConstView>(&array.array);
    if (view == nullptr) continue;
    const std::string_view type = safetensors_type(view->dtype());
    if (type.empty()) {
      throw Error("write_safetensors", array.name,
                  "must be real, bool or integer, got " + describe(*view));
    }
    header[array.name] = {{"dtype", type},
                          {"shape", std::vector<Index>(view->shape().begin(), view->shape().end())},
                          {"data_offsets", {0, 0}}};
  }
  std::size_t end = 0;
  for (const app::NamedView* array : order) {
    const std::size_t begin =
        std::exchange(end, end + byte_size(std::get<ConstView>(array->array)));
    header[array->name]["data_offsets"] = {begin, end};
  }
  std::string json = header.dump();
  json.resize((json.size() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment, ' ');
  const std::uint64_t size = json.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + json;
}

// Reads all arrays of a source from which nothing has been read yet.
std::vector<app::NamedArray> read_all(ByteSource& source) {
  SafetensorsHeader header = read_safetensors_header(source);
  std::vector<app::Array> tensors(header.tensors.size());
  for (const std::size_t place : header.in_file) {
    SafetensorsEntry& entry = header.tensors[place];
    if (entry.dtype != DType::kNone) {
      tensors[place] = read_tensor(source, entry.dtype, entry.shape);
    } else {
      source.skip(entry.end - entry.begin);
      tensors[place] = app::Unread{std::move(entry.type), entry.shape};
    }
  }
  std::vector<app::NamedArray> arrays;
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    names.insert(header.tensors[i].name);
    arrays.push_back({std::move(header.tensors[i].name), std::move(tensors[i])});
  }
  for (auto& [name, value] : header.metadata) {
    if (names.contains(name)) continue;
    auto strings = text_from_json(value);
    if (strings) arrays.push_back({std::move(name), *std::move(strings)});
  }
  return arrays;
}

}  // namespace

std::vector<app::NamedArray> read_safetensors(InputFile& file) {
  if (!file.size()) check_head(file, is_safetensors, "a .safetensors file");
  ByteSource source = byte_source(file);
  return read_all(source);
}

}  // namespace qkv::files

namespace qkv::app {

void write_safetensors(const std::string& path, std::span<const NamedView> arrays) {
  files::check_names("write_safetensors", arrays);
  const auto order = files::in_file_order(arrays);
  const std::string header = files::header_of(arrays, order);
  files::OutputFile file(path);
  file.write(header.data(), header.size());
  for (const NamedView* array : order) {
    const ConstView& view = std::get<ConstView>(array->array);
    const Tensor copy = view.is_contiguous() ? Tensor() : contiguous(view);
    file.write(copy.given() ? copy.view().data() : view.data(), files::byte_size(view));
  }
  file.commit();
}

std::vector<NamedArray> read_safetensors(const std::string& path, const std::atomic<bool>* stop) {
  files::InputFile file(path, stop);
  return files::read_safetensors(file);
}

std::vector<NamedArray> parse_safetensors(const std::string& name, std::string_view bytes) {
  files::ByteSource source = files::byte_source(name, bytes);
  return files::read_all(source);
}

}  // namespace qkv::app
