// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TEXT_FILE_H_
#define QKV_APP_TEXT_FILE_H_

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// The bytes of a file, "-" being standard input. Throws InputError, and Cancelled when the flag
// (which may be null) becomes true.
QKV_API std::string read_text(const std::string& path, const std::atomic<bool>* stop = nullptr);

// The same in blocks of at most 64 KiB as they come, never more than one ahead of what was taken.
QKV_API void for_each_block(const std::string& path,
                            const std::function<void(std::string_view)>& take,
                            const std::atomic<bool>* stop = nullptr);

// Where the bytes of an output are to stand: behind symbolic links, whether there is something yet
// or not. Throws OutputError for links that lead in a circle.
QKV_API std::string behind_links(const std::string& path);

// A file of these bytes: it appears whole or not at all ("-": standard output). Throws OutputError.
QKV_API void write_text(const std::string& path, std::string_view bytes);

// The same in blocks, each good until the next is asked for; an empty one ends the file. When
// `next` throws there is no file.
QKV_API void write_blocks(const std::string& path, const std::function<std::string_view()>& next);

}  // namespace qkv::app

#endif  // QKV_APP_TEXT_FILE_H_
