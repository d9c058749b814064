// SPDX-License-Identifier: Apache-2.0
#include "picture/svg_paint.h"

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// Colours between two points of the table are interpolated linearly, like those of a gradient.
std::string gradient() {
  std::string stops;
  for (int n = 0; n <= kBarSteps; ++n) {
    stops += fmt::format("<stop offset=\"{}\" stop-color=\"{}\"/>",
                         static_cast<double>(n) / kBarSteps, hex(bar_point(n)));
  }
  return fmt::format("<linearGradient id=\"bar\">{}</linearGradient>\n", stops);
}

// In units of cells, but equally fine for any cell size.
std::string hatching(const Model& model, const Layout& layout) {
  if (!model.has(CellKind::kMasked)) return "";
  return fmt::format(
      "<pattern id=\"masked\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"scale({:.6g} {:.6g})\"><rect width=\"5\" height=\"5\" fill=\"#fff\"/>"
      "<path d=\"M-1 1l2-2M0 5l5-5M4 6l2-2\" stroke=\"#aaa\" stroke-width=\"0.8\"/></pattern>\n",
      1 / layout.cell_width, 1 / layout.cell_height);
}

}  // namespace

std::size_t fill_of(const Model& model, const Cell& cell) {
  switch (cell.kind) {
    case CellKind::kNumber:
      return static_cast<std::size_t>(level_of(model.place(cell.value)));
    case CellKind::kZero:
      return kFillZero;
    case CellKind::kMasked:
      return kFillMasked;
    case CellKind::kNotFinite:
      break;
  }
  return kFillNotFinite;
}

std::string paint_of(std::size_t fill) {
  if (fill == kFillMasked) return "fill=\"url(#masked)\"";
  const Rgb colour = fill == kFillZero        ? kPaperZero
                     : fill == kFillNotFinite ? kFault
                                              : paper_colour(static_cast<int>(fill));
  return fmt::format("fill=\"{}\"", hex(colour));
}

std::string definitions(const Model& model, const Layout& layout) {
  return "<defs>\n" + gradient() + hatching(model, layout) + "</defs>\n";
}

}  // namespace qkv::app::picture
