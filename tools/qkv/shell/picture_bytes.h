// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_PICTURE_BYTES_H_
#define QKV_TOOLS_SHELL_PICTURE_BYTES_H_

#include <string>

#include <qkv/app/picture.h>

// Pictures as file contents. Both throw UsageError for one that is too large to draw.
std::string svg_bytes(const qkv::app::Picture& picture);
// These throw NotAvailable if the machine lacks the renderer.
std::string png_bytes(const qkv::app::Picture& picture);
// The checks throw it early if drawing would.
void check_png();
std::string pdf_bytes(const qkv::app::Picture& picture);
void check_pdf();

#endif  // QKV_TOOLS_SHELL_PICTURE_BYTES_H_
