// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_NPY_H_
#define QKV_FILES_NPY_H_

#include <cstddef>
#include <string>
#include <string_view>

#include <qkv/app/array_file.h>

#include "files/byte_source.h"

namespace qkv::files {

// A .npy file in memory, in two pieces: header and data. The data may be the caller's array, which
// must then outlive the image.
class NpyImage {
 public:
  // Throws Error in the name of `function`, for the argument `name`, if a file cannot hold the
  // array.
  NpyImage(std::string_view function, std::string_view name, const app::ArrayView& array);
  NpyImage(const NpyImage&) = delete;  // data() may point into the image
  NpyImage& operator=(const NpyImage&) = delete;

  const std::string& header() const noexcept { return header_; }
  const void* data() const noexcept { return data_; }
  std::size_t data_size() const noexcept { return size_; }

 private:
  // set_numbers() and set_text() set the header and the data; they return the rule that the array
  // breaks, or "".
  std::string set_numbers(const ConstView& view);
  std::string set_text(const app::Strings& strings);

  std::string header_;
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  Tensor copy_;             // the data, if the caller's array is not in C order or is bfloat16
  std::u32string letters_;  // the data of a text array
};

// Reads a header and its array, which gets no name.
app::NamedArray read_npy(ByteSource& source);

}  // namespace qkv::files

#endif  // QKV_FILES_NPY_H_
