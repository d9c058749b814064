// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_PICTURE_BYTES_H_
#define QKV_COMMANDS_SHELL_PICTURE_BYTES_H_

#include <string>
#include <variant>

#include <qkv/app/picture.h>

#include "picture/chart.h"

using Figure = std::variant<qkv::app::Picture, qkv::app::Chart>;

// Each of svg_bytes(), png_bytes() and pdf_bytes() returns the contents of a file of that format,
// and throws UsageError for a picture that is too large to draw.
std::string svg_bytes(const Figure& figure);
// The .png and .pdf functions throw NotAvailable if the machine lacks the renderer (rsvg-convert).
std::string png_bytes(const Figure& figure);
// The checks render a small picture, so that NotAvailable is thrown before anything is computed.
void check_png();
std::string pdf_bytes(const Figure& figure);
void check_pdf();

#endif  // QKV_COMMANDS_SHELL_PICTURE_BYTES_H_
