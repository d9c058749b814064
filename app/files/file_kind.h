// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_FILE_KIND_H_
#define QKV_FILES_FILE_KIND_H_

#include <atomic>
#include <string>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// The kinds of files that this program recognises.
enum class FileKind {
  kNpy,  // <qkv/app/array_file.h>, and the next two
  kNpz,
  kSafetensors,
  kWordVectors,  // <qkv/app/word_vectors.h>
  kColumns,      // io/parallel_text.h: UTF-8 text with tabs
  kText,         // other UTF-8 text
  kNumbers,      // a table of numbers, separated by blanks or tabs
};

// Identifies a file by its first bytes; its reader checks the rest. Throws
// InputError for a file that is missing, empty or of another kind, which it names if it can
// ("got a PNG picture"), and Cancelled if the flag (which may be null) becomes true.
QKV_API FileKind file_kind(const std::string& path, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_FILES_FILE_KIND_H_
