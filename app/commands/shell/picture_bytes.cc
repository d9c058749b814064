// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/picture_bytes.h"

#include <string>

#include <qkv/error.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"

namespace {

constexpr double kZoom = 2;  // pixels of a .png for each unit of the SVG

// Draws a figure. A qkv::Error means too many cells; it becomes a UsageError, since the command
// line selects what is drawn.
template <class Draw>
std::string drawn(const Figure& figure, Draw draw) {
  try {
    return std::visit(draw, figure);
  } catch (const qkv::Error& error) {
    throw UsageError(std::string(error.what()).substr(error.function().size() + 2));
  }
}

qkv::app::Picture smallest_picture() {
  static constexpr float kWeight = 1;
  qkv::app::Picture smallest;
  smallest.panels.push_back({"", qkv::ConstView(&kWeight, {1, 1}), {}});
  return smallest;
}

}  // namespace

std::string svg_bytes(const Figure& figure) {
  return drawn(figure, [](const auto& p) { return qkv::app::draw_svg(p); });
}

void check_png() { static_cast<void>(qkv::app::draw_png(smallest_picture(), kZoom, &stop_flag())); }

void check_pdf() { static_cast<void>(qkv::app::draw_pdf(smallest_picture(), &stop_flag())); }

std::string pdf_bytes(const Figure& figure) {
  return drawn(figure, [](const auto& p) { return qkv::app::draw_pdf(p, &stop_flag()); });
}

std::string png_bytes(const Figure& figure) {
  return drawn(figure, [](const auto& p) { return qkv::app::draw_png(p, kZoom, &stop_flag()); });
}
