// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_NPY_HEADER_H_
#define QKV_FILES_NPY_HEADER_H_

#include <string>
#include <string_view>

#include <qkv/view.h>

#include "files/byte_source.h"

// The head of a .npy file: NumPy's NPY format (documented at numpy.lib.format), versions 1 to 3.
namespace qkv::files {

enum class NpyKind { kNumber, kUnicode, kBytes };

struct NpyHeader {
  NpyKind kind = NpyKind::kNumber;
  DType dtype = DType::kNone;  // element type of a numeric array
  Index item_size = 0;         // bytes of one element
  bool swapped = false;        // stored in the opposite of this machine's byte order
  bool fortran_order = false;
  Dims shape{};
};

// Reads the header and leaves the source at the first byte of data. Throws InputError if the source
// is not a .npy file, has an unsupported type, or claims more or less data than it has.
NpyHeader read_npy_header(ByteSource& source);

// Builds the header, a multiple of 64 bytes, of an array in C order. `descr` is NumPy's name of the
// type, such as "<f4".
std::string npy_header(std::string_view descr, const Dims& shape);

// NumPy's name of a numeric type in little endian, or "" if it has none.
std::string npy_descr(DType dtype);

}  // namespace qkv::files

#endif  // QKV_FILES_NPY_HEADER_H_
