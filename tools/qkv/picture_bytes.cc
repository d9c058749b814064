// SPDX-License-Identifier: Apache-2.0
#include "picture_bytes.h"

std::string svg_bytes(const qkv::app::Picture& picture) { return qkv::app::draw_svg(picture); }

std::string png_bytes(const qkv::app::Picture& picture) { return qkv::app::draw_png(picture); }
