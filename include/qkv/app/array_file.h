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

// Text of any shape, in C order; UTF-8 here, NumPy's "<U" in files.
struct Strings {
  Dims shape{};
  std::vector<std::string> values{};
};

// An array in a file whose type is not read, such as float8: the type as the file names it.
struct Unread {
  std::string dtype{};
  Dims shape{};
};

using Array = std::variant<Tensor, Strings, Unread>;
// An array to be written; the memory stays the caller's.
using ArrayView = std::variant<ConstView, const Strings*>;

// How an array is stored in its file; once read, it is in C order and this machine's byte order.
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

// "float32 [2,3]", "text [4]", "F8_E4M3 [2,3], a type that is not read"; for messages.
QKV_API std::string describe(const Array& array);

enum class Compression { kStored, kDeflated };

// The list of array formats.
enum class ArrayFormat { kNpy, kNpz, kSafetensors };

// The format for a file name's extension; none for an extension of no array format.
QKV_API std::optional<ArrayFormat> array_format(std::string_view path);

// Any array file; its first bytes determine the format, not its name. A .npy file yields one
// array without a name. `only`: a file of another format is malformed. Here and below "-" is
// standard input or standard output. If the flag (which may be null) becomes true while the file
// is read, Cancelled is thrown.
QKV_API std::vector<NamedArray> read_arrays(const std::string& path,
                                            const std::atomic<bool>* stop = nullptr,
                                            std::optional<ArrayFormat> only = std::nullopt);
// `kNpy` takes exactly one array, whose name is not kept.
QKV_API void write_arrays(const std::string& path, ArrayFormat format,
                          std::span<const NamedView> arrays);

// NumPy's array files. Written: version 1, little endian, C order, from any
// strides; bfloat16, which NumPy lacks, as float32. Read: versions 1 to 3, C and Fortran
// order, either byte order; float16, float32, float64, bool, integers, '<U' and '|S' text.
// Files are written atomically: a temporary file is renamed into place at the
// end. Header sizes are checked against the file's size before memory is allocated.
// Reading throws InputError with the byte, writing OutputError; Error for an array that a file
// cannot hold (complex numbers, text that is not UTF-8 or ends in a zero character).
QKV_API void write_npy(const std::string& path, const ArrayView& array);
QKV_API Array read_npy(const std::string& path, const std::atomic<bool>* stop = nullptr);

// NumPy's archives of such files; the same arrays give the same bytes. Names are unique.
QKV_API void write_npz(const std::string& path, std::span<const NamedView> arrays,
                       Compression compression = Compression::kStored);
// All arrays in archive order; members that are not .npy files are skipped.
QKV_API std::vector<NamedArray> read_npz(const std::string& path,
                                         const std::atomic<bool>* stop = nullptr);

// Hugging Face's safetensors: all number types unchanged, including bfloat16; tensors are aligned
// and the same arrays give the same bytes. Text is stored in the file's metadata under its name, as
// JSON: an array of strings, arrays of such arrays, or a single string; reading returns such
// metadata as text, after the tensors, and ignores other metadata. Names are unique. Tensors of
// other types (F8_E4M3, C64, ...) are Unread: the sizes of those that the format has are checked.
QKV_API void write_safetensors(const std::string& path, std::span<const NamedView> arrays);
QKV_API std::vector<NamedArray> read_safetensors(const std::string& path,
                                                 const std::atomic<bool>* stop = nullptr);
// The same from bytes in memory; `name` is used in messages.
QKV_API std::vector<NamedArray> parse_safetensors(const std::string& name, std::string_view bytes);

}  // namespace qkv::app

#endif  // QKV_APP_ARRAY_FILE_H_
