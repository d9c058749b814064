// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_SAFETENSORS_HEADER_H_
#define QKV_FILES_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/view.h>

#include "files/byte_source.h"

// The head of a .safetensors file (Hugging Face's "Safetensors" format): 8 bytes, little endian,
// hold the length of the JSON object that follows. The object names each tensor with its dtype,
// shape and the range of its bytes after the object.
namespace qkv::files {

inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsEntry {
  std::string name{};
  DType dtype = DType::kNone;  // kNone for a type that is not read
  std::string type{};          // the type's name in the file
  Dims shape{};
  Index begin = 0;  // offset of the data's first byte from the header's end
  Index end = 0;    // offset of the byte after the data
  Index byte = 0;   // file offset just after the tensor's name in the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors{};                      // in header order
  std::vector<std::pair<std::string, std::string>> metadata{};  // names and their texts
  std::vector<std::size_t> in_file{};  // indices into `tensors`, in the order of their data
};

// Reads the header and leaves the source at the first byte of data. Throws InputError unless the
// sizes are consistent: each range has the size of its shape, and the ranges fill the rest of the
// source without gaps or overlaps.
SafetensorsHeader read_safetensors_header(ByteSource& source);

// The format's name of a type, or "" if it has none.
std::string_view safetensors_type(DType dtype);

}  // namespace qkv::files

#endif  // QKV_FILES_SAFETENSORS_HEADER_H_
