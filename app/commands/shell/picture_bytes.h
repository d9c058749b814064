// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_PICTURE_BYTES_H_
#define QKV_COMMANDS_SHELL_PICTURE_BYTES_H_

#include <string>
#include <variant>

#include <qkv/app/picture.h>

#include "picture/chart.h"

using Figure = std::variant<qkv::app::Picture, qkv::app::Chart>;

// Pictures as file contents. Both throw UsageError for one that is too large to draw.
std::string svg_bytes(const Figure& figure);
// These throw NotAvailable if the machine lacks the renderer.
std::string png_bytes(const Figure& figure);
// The checks throw it early if drawing would.
void check_png();
std::string pdf_bytes(const Figure& figure);
void check_pdf();

#endif  // QKV_COMMANDS_SHELL_PICTURE_BYTES_H_
