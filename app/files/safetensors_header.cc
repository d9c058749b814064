// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "files/array_formats.h"
#include "files/json_tree.h"

namespace qkv::files {
namespace {

constexpr Index kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kLengthBytes = 8;

struct TypeName {
  DType dtype;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {
    {DType::kFloat64, "F64"},   {DType::kFloat32, "F32"}, {DType::kFloat16, "F16"},
    {DType::kBFloat16, "BF16"}, {DType::kBool, "BOOL"},   {DType::kInt8, "I8"},
    {DType::kInt16, "I16"},     {DType::kInt32, "I32"},   {DType::kInt64, "I64"},
    {DType::kUInt8, "U8"},      {DType::kUInt16, "U16"},  {DType::kUInt32, "U32"},
    {DType::kUInt64, "U64"},
};

// A type of the format that is not read, with the bits of an element.
struct UnreadType {
  std::string_view name;
  Index bits;
};
constexpr UnreadType kUnreadTypes[] = {
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"F8_E4M3", 8},     {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"C64", 64},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

// The sum, or the largest Index if the sum overflows.
Index add(Index a, Index b) {
  Index sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<Index>::max() : sum;
}

Index size_from(const std::array<unsigned char, kLengthBytes>& bytes) {
  std::uint64_t size = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) size = size << 8 | bytes[i];
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  return static_cast<Index>(std::min(size, kMost));
}

// Parses a member of the header. Errors give the member's name and position.
class Member {
 public:
  Member(const ByteSource& source, std::string_view name, Index byte)
      : file_(source.name), name_(name), byte_(source.position + byte) {}

  SafetensorsEntry tensor(const Json& tree) const {
    SafetensorsEntry entry{.name = std::string(name_), .byte = byte_};
    for (const auto& [field, value] : object(tree).items()) {
      if (field == "dtype") {
        if (!value.is_string()) fail("the name of a dtype for", value);
        entry.type = value.get<std::string>();
        entry.dtype = dtype_named(entry.type);
      } else if (field == "shape") {
        if (!value.is_array()) fail("a shape of sizes for", value);
        if (value.size() > kMaxRank) fail(fmt::format("at most {} axes for", kMaxRank), value);
        for (const Json& size : value) entry.shape.push_back(number(size, "a shape of sizes for"));
      } else if (field == "data_offsets") {
        if (!value.is_array() || value.size() != 2) fail("two data_offsets for", value);
        entry.begin = number(value[0], "two data_offsets for");
        entry.end = number(value[1], "two data_offsets for");
      } else {
        fail("dtype, shape and data_offsets of", field);
      }
    }
    if (tree.size() != 3) fail("dtype, shape and data_offsets of", tree);
    return entry;
  }
  const Json& object(const Json& value) const {
    if (!value.is_object()) fail("an object that describes", value);
    return value;
  }
  std::string text(const Json& value) const {
    if (!value.is_string()) fail("text in the metadata", value);
    return value.get<std::string>();
  }

 private:
  [[noreturn]] void fail(std::string_view expected, const Json& got) const {
    const std::string shown = got.is_object()   ? fmt::format("an object of {}", got.size())
                              : got.is_array()  ? fmt::format("an array of {}", got.size())
                              : got.is_string() ? app::quoted(got.get<std::string>())
                                                : got.dump();
    throw app::InputError::at_byte(
        file_, byte_, fmt::format("expected {} {}, got {}", expected, app::quoted(name_), shown));
  }
  Index number(const Json& value, std::string_view expected) const {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) fail(expected, value);
    return value.get<Index>();
  }
  static DType dtype_named(std::string_view name) {
    for (const TypeName& type : kTypeNames) {
      if (name == type.name) return type.dtype;
    }
    return DType::kNone;
  }

  std::string_view file_;
  std::string_view name_;
  Index byte_;
};

SafetensorsHeader read_tree(std::string_view text, const ByteSource& source) {
  constexpr JsonBounds kMost{
      .what = "an object of tensors", .depth = 4, .values = std::size_t{1} << 22};
  const auto refuse = [&](Index byte, const std::string& detail) {
    throw app::InputError::at_byte(source.name, source.position + byte, detail);
  };
  if (!text.starts_with('{')) {
    refuse(0, "expected a header that is a JSON object, got " + app::quoted(text, 20));
  }
  const JsonTree tree = json_tree(text, kMost, refuse);
  SafetensorsHeader header;
  for (const auto& [name, byte, value, names] : tree.members) {
    const Member member(source, name, byte);
    if (name != kSafetensorsMetadata) {
      header.tensors.push_back(member.tensor(value));
      continue;
    }
    const Json& metadata = member.object(value);
    for (const std::string& key : names) {
      header.metadata.emplace_back(key, Member(source, key, byte).text(metadata[key]));
    }
  }
  return header;
}

// The size of a tensor's data that its type and shape imply. If there is no such size, `fault`
// completes the message "expected {fault} of data". size_by_type() returns none for a type of
// unknown size.
struct DataSize {
  std::optional<Index> bytes{};
  std::string_view fault{};
};
std::optional<DataSize> size_by_type(const SafetensorsEntry& entry) {
  constexpr std::string_view kTooMuch = "2^63 or more bytes";
  if (entry.dtype != DType::kNone) {
    return DataSize{byte_count(entry.shape, static_cast<Index>(size_of(entry.dtype))), kTooMuch};
  }
  for (const UnreadType& type : kUnreadTypes) {
    if (entry.type != type.name) continue;
    const auto bits = byte_count(entry.shape, type.bits);
    if (!bits) return DataSize{{}, kTooMuch};
    if (*bits % 8 != 0) return DataSize{{}, "whole bytes"};
    return DataSize{*bits / 8};
  }
  return std::nullopt;
}

// Throws InputError unless each tensor has the size that its type and shape imply and the tensors
// fill the rest of the source. Sets the header's in_file.
void check_layout(SafetensorsHeader& header, ByteSource& source) {
  const auto fail = [&](const SafetensorsEntry& entry, const std::string& expected, Index got) {
    throw app::InputError::at_byte(
        source.name, entry.byte,
        fmt::format("expected {} for {}, got {}", expected, app::quoted(entry.name), got));
  };
  header.in_file.resize(header.tensors.size());
  std::iota(header.in_file.begin(), header.in_file.end(), std::size_t{0});
  const auto range = [&](std::size_t place) {
    return std::pair(header.tensors[place].begin, header.tensors[place].end);
  };
  std::stable_sort(header.in_file.begin(), header.in_file.end(),
                   [&](std::size_t a, std::size_t b) { return range(a) < range(b); });
  Index end = 0;
  for (const std::size_t place : header.in_file) {
    const SafetensorsEntry& entry = header.tensors[place];
    if (entry.begin != end) fail(entry, fmt::format("data from offset {}", end), entry.begin);
    const auto size = size_by_type(entry);
    if (size && size->bytes != entry.end - entry.begin) {
      fail(entry,
           fmt::format("{} of data for shape {}",
                       size->bytes ? fmt::format("{} bytes", *size->bytes) : size->fault,
                       to_string(entry.shape)),
           entry.end - entry.begin);
    }
    if (entry.end < entry.begin) {
      fail(entry, fmt::format("data that ends at {} or later", entry.begin), entry.end);
    }
    source.look_ahead(entry.end);
    if (entry.end > source.left()) {
      throw app::InputError::at_byte(
          source.name, entry.byte,
          fmt::format("{}expected at least {} bytes, the end of {}, got {}", kTruncated,
                      add(source.position, entry.end), app::quoted(entry.name), source.size));
    }
    end = entry.end;
  }
  source.look_ahead(end);
  if (end != source.left()) {
    source.fail(fmt::format("expected {} bytes of data, got {}", end, source.left()));
  }
}

}  // namespace

bool is_safetensors(std::string_view head) {
  // The four high bytes of a length of at most 1e8 are zero; text has no zero bytes.
  constexpr std::string_view kHighBytes("\0\0\0\0", 4);
  return head.size() > kLengthBytes && head[kLengthBytes] == '{' && head.substr(4, 4) == kHighBytes;
}

SafetensorsHeader read_safetensors_header(ByteSource& source) {
  std::array<unsigned char, kLengthBytes> length{};
  source.read_all(length.data(), length.size());
  const Index size = size_from(length);
  source.look_ahead(std::min(size, kLongestHeader));
  if (size > kLongestHeader) {
    source.fail(fmt::format("expected a header of at most {} bytes, got {}", kLongestHeader, size));
  }
  if (size > source.left()) {
    source.fail(fmt::format("{}expected at least {} bytes, got {}", kTruncated,
                            source.position + size, source.size));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  const Index start = source.position;
  source.read_all(text.data(), text.size());
  const Index end = std::exchange(source.position, start);
  SafetensorsHeader header = read_tree(text, source);
  source.position = end;
  check_layout(header, source);
  return header;
}

std::string_view safetensors_type(DType dtype) {
  for (const TypeName& type : kTypeNames) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

}  // namespace qkv::files
