// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_ARRAY_FILE_H_
#define QKV_APP_ARRAY_FILE_H_

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

// An array of texts in C order. A text is UTF-8 in memory and NumPy's "<U" type in NumPy's files.
struct Strings {
  Dims shape{};
  std::vector<std::string> values{};
};

// An array whose type the library does not read, such as float8. `dtype` is the type's name in the
// file.
struct Unread {
  std::string dtype{};
  Dims shape{};
};

using Array = std::variant<Tensor, Strings, Unread>;
// An array to be written. The caller owns the memory.
using ArrayView = std::variant<ConstView, const Strings*>;

// The order in which an array's file stores its elements. In memory an array that was read is
// always in C order and in this machine's byte order.
enum class Storage { kCOrder, kFortranOrder };
struct NamedArray {
  std::string name{};
  Array array{};
  Storage storage = Storage::kCOrder;
};
struct NamedView {
  std::string name{};
  ArrayView array{};
};

// A description for messages: "float32 [2,3]", "text [4]", "F8_E4M3 [2,3] (unsupported type)".
QKV_API std::string describe(const Array& array);

enum class Compression { kStored, kDeflated };

enum class ArrayFormat { kNpy, kNpz, kSafetensors };

// The array format for a file name's extension, or nothing if no array format has that extension.
QKV_API std::optional<ArrayFormat> array_format(std::string_view path);

// Reads an array file of any format; its first bytes determine the format, not its name. A .npy
// file yields one array without a name. If `only` is given, a file of another format is malformed.
// In all functions of this header the path "-" is standard input or standard output, and Cancelled
// is thrown if the flag `stop` (which may be null) becomes true while the file is read.
QKV_API std::vector<NamedArray> read_arrays(const std::string& path,
                                            const std::atomic<bool>* stop = nullptr,
                                            std::optional<ArrayFormat> only = std::nullopt);
// Writes the arrays in that format. `kNpy` takes exactly one array, whose name is not written.
QKV_API void write_arrays(const std::string& path, ArrayFormat format,
                          std::span<const NamedView> arrays);

// NumPy's array files. They are written as version 1, little endian, in C order, from views with
// any strides; bfloat16, which NumPy lacks, is written as float32. Versions 1 to 3 are read, in C
// and Fortran order and either byte order, with float16, float32, float64, bool, integers, '<U' and
// '|S' text. Files are written atomically: a temporary file is renamed into place at the end.
// Header sizes are checked against the file's size before memory is allocated. Reading throws
// InputError with the position (in bytes) of what is wrong. Writing throws OutputError, and Error
// for an array that a file cannot hold (complex numbers, text that is not UTF-8 or ends in a zero
// character).
QKV_API void write_npy(const std::string& path, const ArrayView& array);
QKV_API Array read_npy(const std::string& path, const std::atomic<bool>* stop = nullptr);

// NumPy's archives of .npy files. Equal arrays give bit-identical files. Names are unique.
QKV_API void write_npz(const std::string& path, std::span<const NamedView> arrays,
                       Compression compression = Compression::kStored);
// Reads all arrays in archive order and skips members that are not .npy files.
QKV_API std::vector<NamedArray> read_npz(const std::string& path,
                                         const std::atomic<bool>* stop = nullptr);

// Hugging Face's safetensors files. All number types are stored unchanged, including bfloat16;
// tensors are aligned, and equal arrays give bit-identical files. An array of text is stored in the
// file's metadata under the array's name, as JSON: an array of strings, arrays of such arrays, or a
// single string. Reading returns such metadata as text, after the tensors, and ignores other
// metadata. Names are unique. Tensors of other types (F8_E4M3, C64, ...) are returned as Unread;
// their sizes are checked if the safetensors format defines the type.
QKV_API void write_safetensors(const std::string& path, std::span<const NamedView> arrays);
QKV_API std::vector<NamedArray> read_safetensors(const std::string& path,
                                                 const std::atomic<bool>* stop = nullptr);
// Parses the bytes of a safetensors file in memory; `name` stands for the file in messages.
QKV_API std::vector<NamedArray> parse_safetensors(const std::string& name, std::string_view bytes);

}  // namespace qkv::app

#endif  // QKV_APP_ARRAY_FILE_H_
