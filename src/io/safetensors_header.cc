// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "io/array_formats.h"

namespace qkv::io {
namespace {

constexpr Index kLongestHeader = 100'000'000;  // the format's own bound
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

Index size_from(const std::array<unsigned char, kLengthBytes>& bytes) {
  std::uint64_t size = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) size = size << 8 | bytes[i];
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  return static_cast<Index>(std::min(size, kMost));
}

// The text of the header, counting how far the parser is.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* read;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    ++at;
    ++*read;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// Takes the events of the JSON parser. Only what the format allows is let through, so that nothing
// nests deeper than three levels and no document is built.
class HeaderEvents {
 public:
  HeaderEvents(std::string_view text, const ByteSource& source)
      : text_(text), file_(source.name), start_(source.position) {}

  SafetensorsHeader read() {
    if (!text_.starts_with('{')) refuse(app::quoted(text_, 20));
    read_ = text_.find('\0');  // nlohmann's parser takes it for the end
    if (read_ != text_.npos) fail("JSON", "a zero byte");
    read_ = 0;
    nlohmann::json::sax_parse(Cursor{text_.data(), &read_},
                              Cursor{text_.data() + text_.size(), nullptr}, this);
    return std::move(header_);
  }

  // What nlohmann's parser calls.
  bool start_object(std::size_t) {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ != Place::kTop) refuse("an object");
    if (name_ == kSafetensorsMetadata) return go(Place::kMetadata);
    header_.tensors.push_back({name_, DType::kNone, {}, -1, -1, here()});
    fields_ = {};
    return go(Place::kTensor);
  }
  bool end_object() {
    if (place_ == Place::kTensor && (!fields_[kType] || !fields_[kShape] || offsets_ != 2)) {
      refuse("the end of its description");
    }
    return go(Place::kTop);
  }
  bool start_array(std::size_t) {
    if (place_ == Place::kTensor && field_ == kShape) return go(Place::kShape);
    if (place_ != Place::kTensor || field_ != kOffsets) refuse("an array");
    offsets_ = 0;
    return go(Place::kOffsets);
  }
  bool end_array() {
    if (place_ == Place::kOffsets && offsets_ != 2) refuse("the end of the array");
    return go(Place::kTensor);
  }
  bool key(std::string& key) {
    if (place_ == Place::kTensor) return take_field(key);
    auto& known = place_ == Place::kTop ? names_ : metadata_names_;
    if (!known.insert(key).second) fail("different names", app::quoted(key) + " once more");
    name_ = std::move(key);
    return true;
  }
  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace_back(name_, std::move(value));
      return true;
    }
    if (place_ != Place::kTensor || field_ != kType) refuse(app::quoted(value));
    return take_type(value);
  }
  bool number_unsigned(std::uint64_t value) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    if (value > kMost || (place_ != Place::kShape && place_ != Place::kOffsets)) {
      refuse(fmt::to_string(value));
    }
    return take_number(static_cast<Index>(value));
  }
  bool number_integer(std::int64_t value) { refuse(fmt::to_string(value)); }
  bool number_float(double, const std::string& text) { refuse(text.substr(0, 40)); }
  bool boolean(bool value) { refuse(value ? "true" : "false"); }
  bool null() { refuse("null"); }
  bool binary(nlohmann::json::binary_t&) { refuse("bytes"); }
  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception&) {
    const std::size_t at = std::min(read_ - std::min<std::size_t>(read_, 1), text_.size());
    fail("JSON", at + 1 >= text_.size() ? "the end" : app::quoted(text_.substr(at), 20));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum Field : std::size_t { kType, kShape, kOffsets, kFields };

  Index here() const { return start_ + static_cast<Index>(read_); }
  [[noreturn]] void fail(std::string_view expected, std::string_view got) const {
    throw app::InputError::at_byte(file_, here(),
                                   fmt::format("expected {}, got {}", expected, got));
  }
  // What is wanted where the parser stands.
  [[noreturn]] void refuse(std::string_view got) const {
    switch (place_) {
      case Place::kStart:
        fail("a header that is a JSON object", got);
      case Place::kTop:
        fail("an object that describes " + app::quoted(name_), got);
      case Place::kMetadata:
        fail("metadata that is text", got);
      case Place::kTensor:
        fail(fmt::format("dtype, shape and data_offsets of {}", app::quoted(name_)), got);
      case Place::kShape:
        fail("a shape of sizes for " + app::quoted(name_), got);
      case Place::kOffsets:
        break;
    }
    fail("two data_offsets for " + app::quoted(name_), got);
  }
  bool go(Place place) {
    place_ = place;
    return true;
  }

  bool take_field(const std::string& key) {
    constexpr std::string_view kNames[kFields] = {"dtype", "shape", "data_offsets"};
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), key);
    field_ = static_cast<Field>(found - std::begin(kNames));
    if (field_ == kFields || std::exchange(fields_[field_], true)) refuse(app::quoted(key));
    return true;
  }
  bool take_type(const std::string& name) {
    std::string known;
    for (const TypeName& type : kTypeNames) {
      if (type.name == name) header_.tensors.back().dtype = type.dtype;
      known += fmt::format("{}{}", known.empty() ? "" : " ", type.name);
    }
    if (header_.tensors.back().dtype != DType::kNone) return true;
    fail(fmt::format("a dtype of {} for {}", known, app::quoted(name_)), app::quoted(name));
  }
  bool take_number(Index value) {
    SafetensorsEntry& entry = header_.tensors.back();
    if (place_ == Place::kShape) {
      if (entry.shape.rank() == kMaxRank) fail(fmt::format("at most {} axes", kMaxRank), "more");
      entry.shape.push_back(value);
      return true;
    }
    if (offsets_ == 2) refuse("more");
    (offsets_++ == 0 ? entry.begin : entry.end) = value;
    return true;
  }

  std::string_view text_;
  std::string file_;
  Index start_;
  std::size_t read_ = 0;
  SafetensorsHeader header_{};
  Place place_ = Place::kStart;
  std::string name_{};  // the tensor or metadata that is being read
  Field field_ = kFields;
  std::array<bool, kFields> fields_{};  // which of them the tensor has had
  int offsets_ = 0;
  std::unordered_set<std::string> names_{};
  std::unordered_set<std::string> metadata_names_{};
};

// Throws unless the tensors fill `data_size` bytes, each with as many as its shape says.
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
    const auto bytes = byte_count(entry.shape, static_cast<Index>(size_of(entry.dtype)));
    if (entry.begin != end) fail(entry, fmt::format("data from offset {}", end), entry.begin);
    if (!bytes || *bytes != entry.end - entry.begin) {
      fail(entry,
           fmt::format("{} bytes of data for shape {}",
                       bytes ? fmt::to_string(*bytes) : "more than 2^63", to_string(entry.shape)),
           entry.end - entry.begin);
    }
    source.look_ahead(entry.end);
    if (entry.end > source.left()) {
      fail(entry, fmt::format("data within the file's {} bytes of it", source.left()), entry.end);
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
  return head.size() > kLengthBytes && head[kLengthBytes] == '{';
}

SafetensorsHeader read_safetensors_header(ByteSource& source) {
  std::array<unsigned char, kLengthBytes> length{};
  source.read_all(length.data(), length.size());
  const Index size = size_from(length);
  source.look_ahead(std::min(size, kLongestHeader));
  const Index most = std::min(kLongestHeader, source.left());
  if (size > most) {
    source.fail(fmt::format("expected a header of at most {} bytes, got {}", most, size));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  const Index start = source.position;
  source.read_all(text.data(), text.size());
  const Index end = std::exchange(source.position, start);
  SafetensorsHeader header = HeaderEvents(text, source).read();
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

}  // namespace qkv::io
