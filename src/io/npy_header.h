// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_NPY_HEADER_H_
#define QKV_IO_NPY_HEADER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <qkv/view.h>

// The head of a .npy file: NumPy's "A Simple File Format for NumPy Arrays" (NEP 1), versions 1
// to 3.
namespace qkv::io {

// Bytes of a file or of a member of an archive.
struct ByteSource {
  std::string name{};  // as messages name it
  // Reads until `bytes` are there or the source ends; returns how many there are.
  std::function<std::size_t(void* target, std::size_t bytes)> read{};
  Index size = 0;      // what the source is known to hold
  Index position = 0;  // bytes read so far

  // Exactly `bytes` bytes; InputError at where they end.
  void read_all(void* target, std::size_t bytes);
  [[noreturn]] void fail(std::string_view detail) const;
};

enum class NpyKind { kNumber, kUnicode, kBytes };

struct NpyHeader {
  NpyKind kind = NpyKind::kNumber;
  DType dtype = DType::kNone;  // of numbers
  Index item_size = 0;         // bytes of one element
  bool swapped = false;        // the other byte order than this machine's
  bool fortran_order = false;
  Dims shape{};
};

// Leaves the source at the first byte of data. Throws InputError for what is no .npy file, or
// holds a type that cannot be read, or promises more or less data than the source has.
NpyHeader read_npy_header(ByteSource& source);

// The bytes before the data of a C-ordered array, their number a multiple of 64.
// `descr` is NumPy's name of the type: "<f4".
std::string npy_header(std::string_view descr, const Dims& shape);

// NumPy's name of a number type, little endian; "" where it has none.
std::string npy_descr(DType dtype);

}  // namespace qkv::io

#endif  // QKV_IO_NPY_HEADER_H_
