// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_TEXT_FILE_H_
#define QKV_FILES_TEXT_FILE_H_

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// Reads all bytes of a file; the path "-" is standard input. Throws InputError, and Cancelled if
// the flag (which may be null) becomes true.
QKV_API std::string read_text(const std::string& path, const std::atomic<bool>* stop = nullptr);

// Calls `take` with the bytes of a file in blocks of 64 KiB; only the last may be shorter. A block
// is taken before more is read. Path, flag and errors are those of read_text().
QKV_API void for_each_block(const std::string& path,
                            const std::function<void(std::string_view)>& take,
                            const std::atomic<bool>* stop = nullptr);

// Returns the path to which an output's path leads if it is a symbolic link, else the path itself.
// The file need not exist. Throws OutputError for a cycle of links.
QKV_API std::string behind_links(const std::string& path);

// Writes a file of `bytes` atomically; the path "-" is standard output. Throws OutputError.
QKV_API void write_text(const std::string& path, std::string_view bytes);

// Writes a file atomically from the blocks that `next` returns. Each block is valid until the next
// call; an empty one ends the file. If `next` throws, no file is written.
QKV_API void write_blocks(const std::string& path, const std::function<std::string_view()>& next);

}  // namespace qkv::app

#endif  // QKV_FILES_TEXT_FILE_H_
