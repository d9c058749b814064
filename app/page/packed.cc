// SPDX-License-Identifier: Apache-2.0
#include "page/packed.h"

#include <new>
#include <vector>

#include <zlib.h>

namespace qkv::app::page {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

unsigned byte_at(std::string_view bytes, std::size_t at) {
  return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0U;
}

unsigned digit_of(char digit) {
  return static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

// A zlib compressor. Throws std::bad_alloc if memory runs out, the only failure possible here.
class Deflater {
 public:
  Deflater() {
    constexpr int kRaw = -15;  // the largest window, without a header
    constexpr int kMemory = 9;
    if (::deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kRaw, kMemory,
                       Z_DEFAULT_STRATEGY) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~Deflater() { ::deflateEnd(&stream_); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  std::string run(std::string_view bytes) {
    std::string result;
    std::vector<unsigned char> buffer(std::size_t{1} << 16);
    std::vector<unsigned char> part;
    constexpr std::size_t kPart = std::size_t{1} << 24;  // sizes of zlib have 32 bits
    std::size_t at = 0;
    do {
      const std::string_view now = bytes.substr(at, kPart);
      at += now.size();
      part.assign(now.begin(), now.end());
      stream_.next_in = part.data();
      stream_.avail_in = static_cast<uInt>(part.size());
      const int flush = at == bytes.size() ? Z_FINISH : Z_NO_FLUSH;
      do {
        stream_.next_out = buffer.data();
        stream_.avail_out = static_cast<uInt>(buffer.size());
        ::deflate(&stream_, flush);
        result.append(buffer.begin(), buffer.end() - stream_.avail_out);
      } while (stream_.avail_out == 0);
    } while (at < bytes.size());
    return result;
  }

 private:
  z_stream stream_{};
};

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const unsigned three =
        byte_at(bytes, at) << 16U | byte_at(bytes, at + 1) << 8U | byte_at(bytes, at + 2);
    for (std::size_t digit = 0; digit < 4; ++digit) {
      const bool is_there = at + digit <= bytes.size();
      text += is_there ? kDigits[three >> (18U - 6U * digit) & 63U] : '=';
    }
  }
  return text;
}

std::string deflated(std::string_view bytes) { return base64(Deflater().run(bytes)); }

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
    bytes += static_cast<char>(digit_of(digits[at]) << 4U | digit_of(digits[at + 1]));
  }
  return bytes;
}

}  // namespace qkv::app::page
