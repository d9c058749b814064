// SPDX-License-Identifier: Apache-2.0
#include "files/zip_length.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace qkv::files {
namespace {

// The parts of an archive (PKWARE, APPNOTE.TXT): members with local headers, then a directory of
// entries, then its end record. If a size is kIn64Bits, the extra field tagged kTagOf64Bits has it.
constexpr std::string_view kMemberMark = "PK\3\4";
constexpr std::string_view kEntryMark = "PK\1\2";
constexpr std::string_view kEndMark = "PK\5\6";
constexpr Index kMemberHeader = 30;  // bytes without names, extra fields and comments
constexpr Index kEntryHeader = 46;
constexpr Index kEndRecord = 22;
constexpr Index kIn64Bits = 0xFFFFFFFF;
constexpr Index kTagOf64Bits = 1;
constexpr Index kLargest = Index{1}
                           << 48;  // bytes; a member that claims more is not a truncated one

// Reads a number of `bytes` bytes, the lowest first, at offset `at`. The result is 2^62 at most.
Index number_at(std::string_view text, std::size_t at, std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = bytes; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(text[at + i]);
  }
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  return static_cast<Index>(number < kMost ? number : kMost);
}

// The member's size in the archive, or none if its header does not tell.
std::optional<Index> stored_size(std::string_view header, std::string_view extra) {
  const bool follows = (header[6] & 8) != 0;  // the size stands behind the data
  const Index size = number_at(header, 18, 4);
  if (size != kIn64Bits) return follows ? std::nullopt : std::optional(size);
  while (extra.size() >= 4) {
    const auto length = static_cast<std::size_t>(number_at(extra, 2, 2));
    if (number_at(extra, 0, 2) == kTagOf64Bits && length >= 16 && extra.size() >= 20) {
      return number_at(extra, 12, 8);
    }
    extra.remove_prefix(extra.size() < 4 + length ? extra.size() : 4 + length);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Index> least_zip_length(const ReadAt& read, Index size) {
  const auto text_at = [&](Index offset, Index bytes) {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    text.resize(read(offset, text.data(), text.size()));
    return text;
  };
  Index at = 0;
  while (at < size) {
    const std::string mark = text_at(at, std::ssize(kEndMark));
    const bool is_member = mark == kMemberMark;
    const bool is_entry = mark == kEntryMark;
    const bool is_cut = mark.size() < kEndMark.size();
    if (!is_member && !is_entry && !is_cut && mark != kEndMark) return std::nullopt;
    const Index fixed = is_member ? kMemberHeader : is_entry ? kEntryHeader : kEndRecord;
    const std::string header = text_at(at, fixed);
    if (std::ssize(header) < fixed) return at + fixed;
    if (mark == kEndMark) return std::nullopt;
    const std::size_t names = is_member ? 26 : 28;  // offset of the length of the name
    const Index name = number_at(header, names, 2);
    const Index extra = number_at(header, names + 2, 2);
    Index end = at + fixed + name + extra;
    if (is_member) {
      const auto stored = stored_size(header, text_at(at + fixed + name, extra));
      if (!stored || *stored > kLargest) return std::nullopt;
      end += *stored;
    } else {
      end += number_at(header, 32, 2);  // the comment
    }
    at = end;
  }
  return at + kEndRecord;
}

}  // namespace qkv::files
