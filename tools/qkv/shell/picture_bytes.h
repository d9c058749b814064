// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_PICTURE_BYTES_H_
#define QKV_TOOLS_SHELL_PICTURE_BYTES_H_

#include <string>

#include <qkv/app/picture.h>

// Pictures as file contents. Both throw UsageError for one that is too large to draw.
std::string svg_bytes(const qkv::app::Picture& picture);
// Throws NotAvailable if the machine lacks the renderer.
std::string png_bytes(const qkv::app::Picture& picture);
// Throws it early if drawing would.
void check_png();

#endif  // QKV_TOOLS_SHELL_PICTURE_BYTES_H_
