// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_FILE_KIND_H_
#define QKV_FILES_FILE_KIND_H_

#include <atomic>
#include <string>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// The kinds of files that file_kind() recognises.
enum class FileKind {
  kNpy,  // kNpy, kNpz and kSafetensors are read by <qkv/app/array_file.h>
  kNpz,
  kSafetensors,
  kWordVectors,  // read by <qkv/app/word_vectors.h>
  kColumns,      // UTF-8 text with tabs, read by files/parallel_text.h
  kText,         // other UTF-8 text
  kNumbers,      // a table of numbers, separated by blanks or tabs
};

// Identifies a file by its first bytes; the reader of that kind checks the rest. Throws InputError
// for a file that is missing, empty or of another kind. The message names some common kinds ("got a
// PNG picture"). Throws Cancelled if the flag (which may be null) becomes true.
QKV_API FileKind file_kind(const std::string& path, const std::atomic<bool>* stop = nullptr);

// The name of a kind of file in messages: "an .npz file", "word vectors".
QKV_API const char* describe(FileKind kind) noexcept;

}  // namespace qkv::app

#endif  // QKV_FILES_FILE_KIND_H_
