// SPDX-License-Identifier: Apache-2.0
#include "picture_bytes.h"

#include "exit_codes.h"

std::string svg_bytes(const qkv::app::Picture& picture) { return qkv::app::draw_svg(picture); }

std::string png_bytes(const qkv::app::Picture& picture) {
  try {
    return qkv::app::draw_png(picture);
  } catch (const qkv::app::NotAvailable& error) {
    throw NotInBuildError(error.what());
  }
}
