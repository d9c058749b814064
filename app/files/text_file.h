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

// The bytes of a file; "-" is standard input. Throws InputError, and Cancelled if the flag
// (which may be null) becomes true.
QKV_API std::string read_text(const std::string& path, const std::atomic<bool>* stop = nullptr);

// The same in blocks of at most 64 KiB as they arrive, reading at most one block ahead.
QKV_API void for_each_block(const std::string& path,
                            const std::function<void(std::string_view)>& take,
                            const std::atomic<bool>* stop = nullptr);

// The path of an output with symbolic links resolved, whether or not the file
// exists. Throws OutputError for a cycle of links.
QKV_API std::string behind_links(const std::string& path);

// Writes a file of these bytes atomically ("-": standard output). Throws OutputError.
QKV_API void write_text(const std::string& path, std::string_view bytes);

// The same in blocks, each valid until the next is requested; an empty one ends the file. If
// `next` throws, there is no file.
QKV_API void write_blocks(const std::string& path, const std::function<std::string_view()>& next);

}  // namespace qkv::app

#endif  // QKV_FILES_TEXT_FILE_H_
