// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_PROTOBUF_H_
#define QKV_TEXT_PROTOBUF_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The few parts of the encoding of protocol buffers that a subword model uses:
// protobuf.dev/programming-guides/encoding.
namespace qkv::app::protobuf {

// How a field's value is stored, as the low bits of the field's tag say.
enum class Wire : std::uint32_t { kVarint = 0, kBytes = 2, kFixed32 = 5 };

inline void put_varint(std::string& to, std::uint64_t value) {
  constexpr std::uint64_t kMore = 0x80;
  for (; value >= kMore; value >>= 7U) to += static_cast<char>((value & (kMore - 1)) | kMore);
  to += static_cast<char>(value);
}

inline void put_tag(std::string& to, std::uint32_t field, Wire wire) {
  put_varint(to, (field << 3U) | static_cast<std::uint32_t>(wire));
}

inline void put_number(std::string& to, std::uint32_t field, std::uint64_t value) {
  put_tag(to, field, Wire::kVarint);
  put_varint(to, value);
}

inline void put_bytes(std::string& to, std::uint32_t field, std::string_view bytes) {
  put_tag(to, field, Wire::kBytes);
  put_varint(to, bytes.size());
  to += bytes;
}

inline void put_float(std::string& to, std::uint32_t field, float value) {
  put_tag(to, field, Wire::kFixed32);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (unsigned shift = 0; shift < 32; shift += 8) to += static_cast<char>((bits >> shift) & 0xFFU);
}

// Takes values from the beginning of bytes. varint(), bytes() and fixed32() return none if the
// bytes do not begin with such a value.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : rest_(bytes) {}

  // The number of bytes that were not taken.
  std::size_t left() const { return rest_.size(); }

  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  // Takes the tag of a field if the bytes begin with it; if not, takes nothing and returns false.
  bool tag(std::uint32_t field, Wire wire) {
    const Taker before = *this;
    if (varint() == ((field << 3U) | static_cast<std::uint32_t>(wire))) return true;
    *this = before;
    return false;
  }
  std::optional<std::string_view> bytes() {
    const auto size = varint();
    if (!size || *size > rest_.size()) return std::nullopt;
    return take(*size);
  }
  std::optional<float> fixed32() {
    if (rest_.size() < 4) return std::nullopt;
    std::uint32_t bits = 0;
    unsigned shift = 0;
    for (const char byte : take(4)) {
      bits |= static_cast<std::uint32_t>(static_cast<unsigned char>(byte)) << shift;
      shift += 8;
    }
    return std::bit_cast<float>(bits);
  }

 private:
  std::string_view take(std::size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace qkv::app::protobuf

#endif  // QKV_TEXT_PROTOBUF_H_
