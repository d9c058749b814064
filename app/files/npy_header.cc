// SPDX-License-Identifier: Apache-2.0
#include "files/npy_header.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "files/array_formats.h"
#include "text/numbers.h"

namespace qkv::files {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
// The length in bytes of the longest header that is read. NumPy writes far shorter ones, and by
// default reads up to 10,000 bytes.
constexpr std::size_t kLongestNpyHeader = std::size_t{1} << 20;
constexpr std::size_t kNpyAlignment = 64;

struct TypeCode {
  DType dtype;
  std::string_view code;  // NumPy's name without the byte order
};
constexpr TypeCode kTypeCodes[] = {
    {DType::kFloat64, "f8"}, {DType::kFloat32, "f4"}, {DType::kFloat16, "f2"},
    {DType::kBool, "b1"},    {DType::kInt8, "i1"},    {DType::kInt16, "i2"},
    {DType::kInt32, "i4"},   {DType::kInt64, "i8"},   {DType::kUInt8, "u1"},
    {DType::kUInt16, "u2"},  {DType::kUInt32, "u4"},  {DType::kUInt64, "u8"},
};

// Reads the header's dictionary, a Python literal: {'descr': '<f4', 'fortran_order': False,
// 'shape': (3, 4), }. The keys may be in any order.
class Dictionary {
 public:
  Dictionary(std::string_view text, const ByteSource& source, Index start)
      : text_(text), source_(source), start_(start) {}

  NpyHeader read() {
    NpyHeader header;
    bool order = false;
    bool shape = false;
    std::string_view descr;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && descr.empty()) {
        if (next_is('[')) fail("one type for all elements", "a structured one: " + rest());
        descr = string();
        take_type(descr, header);
      } else if (key == "fortran_order" && !order) {
        order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = true;
        header.shape = tuple();
      } else {
        fail("the keys descr, fortran_order and shape, each once", quoted_key(key));
      }
      if (!accept(',') && !next_is('}')) fail("a comma or }", rest());
    }
    if (descr.empty() || !order || !shape) {
      fail("the keys descr, fortran_order and shape", "fewer");
    }
    if (!rest_is_blank()) fail("the end of the header", rest());
    return header;
  }

 private:
  static std::string quoted_key(std::string_view key) { return app::quoted(key); }
  [[noreturn]] void fail(std::string_view expected, std::string_view got) const {
    throw app::InputError::at_byte(source_.name, start_ + static_cast<Index>(at_),
                                   fmt::format("expected {}, got {}", expected, got));
  }
  std::string rest() const { return app::quoted(text_.substr(at_), 20); }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool rest_is_blank() {
    skip_blanks();
    return at_ == text_.size();
  }
  bool next_is(char wanted) {
    skip_blanks();
    return at_ < text_.size() && text_[at_] == wanted;
  }
  bool accept(char wanted) {
    if (!next_is(wanted)) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(fmt::format("\"{}\"", wanted), rest());
  }
  std::string_view string() {
    const char quote = next_is('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    if (end == text_.npos) fail("a closing quote", rest());
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_blanks();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False", rest());
  }
  Dims tuple() {
    Dims shape;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      const std::size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
      const auto size = app::parse_number<Index>(text_.substr(at_, end - at_));
      if (!size) fail("a size", rest());
      if (shape.rank() == kMaxRank) fail(fmt::format("at most {} axes", kMaxRank), "more");
      shape.push_back(*size);
      at_ = end;
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote 3L
      if (!accept(',') && !next_is(')')) fail("a comma or )", rest());
    }
    return shape;
  }
  void take_type(std::string_view descr, NpyHeader& header) const {
    const std::string_view code = descr.empty() ? descr : descr.substr(1);
    const char order = descr.empty() ? '\0' : descr[0];
    const bool little = std::endian::native == std::endian::little;
    header.swapped = order == (little ? '>' : '<');
    bool known = std::string_view("<>|=").find(order) != std::string_view::npos;
    if (code.starts_with('U') || code.starts_with('S')) {
      header.kind = code[0] == 'U' ? NpyKind::kUnicode : NpyKind::kBytes;
      const auto length = app::parse_number<std::int32_t>(code.substr(1));
      known = known && length && *length >= 0;
      if (known) header.item_size = Index{*length} * (code[0] == 'U' ? 4 : 1);
    } else {
      for (const TypeCode& type : kTypeCodes) {
        if (type.code == code) header.dtype = type.dtype;
      }
      known = known && header.dtype != DType::kNone;
      header.item_size = static_cast<Index>(size_of(header.dtype));
    }
    if (!known) refuse_type(descr);
  }

  [[noreturn]] void refuse_type(std::string_view descr) const {
    std::string hint;
    if (descr == "|O") hint = " (Python objects; save text as np.array(texts, dtype=str))";
    fail("a type of f2 f4 f8, b1, i1..i8, u1..u8, U or S", app::quoted(descr) + hint);
  }

  std::string_view text_;
  const ByteSource& source_;
  Index start_;
  std::size_t at_ = 0;
};

}  // namespace

NpyHeader read_npy_header(ByteSource& source) {
  std::string magic(kMagic.size() + 2, '\0');
  const std::size_t got = source.read(magic.data(), magic.size());
  if (got >= kMagic.size() && got < magic.size() && magic.starts_with(kMagic)) {
    source.fail(fmt::format("{}expected at least {} bytes, got {}", kTruncated, magic.size(), got));
  }
  if (got < magic.size() || !magic.starts_with(kMagic)) {
    source.fail("expected a .npy file, got " + app::quoted(magic.substr(0, got)));
  }
  source.position += static_cast<Index>(got);
  const int version = static_cast<unsigned char>(magic[kMagic.size()]);
  if (version < 1 || version > 3) {
    source.fail(fmt::format("expected version 1, 2 or 3 of the .npy format, got {}", version));
  }
  unsigned char length_bytes[4] = {};
  source.read_all(length_bytes, version == 1 ? 2 : 4);
  std::size_t length = 0;
  for (int i = 3; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > kLongestNpyHeader) {
    source.fail(
        fmt::format("expected a header of at most {} bytes, got {}", kLongestNpyHeader, length));
  }
  std::string text(length, '\0');
  const Index start = source.position;
  source.read_all(text.data(), length);
  const NpyHeader header = Dictionary(text, source, start).read();

  const auto bytes = byte_count(header.shape, header.item_size);
  source.look_ahead(bytes.value_or(0));
  if (!bytes || *bytes != source.left()) {
    source.fail(fmt::format("{}expected {} bytes of data for shape {}, got {}",
                            bytes && *bytes > source.left() ? kTruncated : "",
                            bytes ? fmt::to_string(*bytes) : "2^63 or more",
                            to_string(header.shape), source.left()));
  }
  return header;
}

bool is_npy(std::string_view head) { return head.starts_with(kMagic); }

std::string npy_descr(DType dtype) {
  for (const TypeCode& type : kTypeCodes) {
    if (type.dtype == dtype) {
      return fmt::format("{}{}", size_of(dtype) == 1 ? '|' : '<', type.code);
    }
  }
  return "";
}

std::string npy_header(std::string_view descr, const Dims& shape) {
  std::string sizes;
  for (const Index size : shape) sizes += fmt::format("{}, ", size);
  if (shape.rank() > 1) sizes.resize(sizes.size() - 2);
  if (shape.rank() == 1) sizes.pop_back();
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, sizes);
  // A header has at most kMaxRank sizes of 19 digits, so version 1's limit of 65,535 bytes
  // suffices.
  const std::size_t before = kMagic.size() + 4;
  const std::size_t whole =
      (before + text.size() + 1 + kNpyAlignment - 1) / kNpyAlignment * kNpyAlignment;
  text.append(whole - before - text.size() - 1, ' ');
  text.push_back('\n');
  std::string header(kMagic);
  header +=
      {'\1', '\0', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace qkv::files
