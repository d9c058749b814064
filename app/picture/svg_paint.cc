// SPDX-License-Identifier: Apache-2.0
#include "picture/svg_paint.h"

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// The gradient of a bar. An SVG viewer interpolates it linearly, as colour_at() does the bar.
std::string gradient(const Bar& bar) {
  std::string stops;
  for (int n = 0; n <= kBarSteps; ++n) {
    stops += fmt::format("<stop offset=\"{}\" stop-color=\"{}\"/>",
                         static_cast<double>(n) / kBarSteps, hex(bar[static_cast<std::size_t>(n)]));
  }
  return fmt::format("<linearGradient id=\"bar\">{}</linearGradient>\n", stops);
}

// The hatching of masked cells, in units of cells, but equally fine for any cell size.
std::string hatching(const Model& model, const Layout& layout) {
  if (!model.has(CellKind::kMasked)) return "";
  return fmt::format(
      "<pattern id=\"masked\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"scale({:.6g} {:.6g})\"><rect width=\"5\" height=\"5\" fill=\"#fff\"/>"
      "<path d=\"M-1 1l2-2M0 5l5-5M4 6l2-2\" stroke=\"#aaa\" stroke-width=\"0.8\"/></pattern>\n",
      1 / layout.cell_width, 1 / layout.cell_height);
}

}  // namespace

std::size_t fill_of(const Cell& cell) {
  switch (cell.kind) {
    case CellKind::kNumber:
      return static_cast<std::size_t>(level_of(cell.place));
    case CellKind::kZero:
      return kFillZero;
    case CellKind::kMasked:
      return kFillMasked;
    case CellKind::kNotFinite:
      break;
  }
  return kFillNotFinite;
}

Rgb colour_of(const Palette& palette, std::size_t fill) {
  constexpr Rgb kHatched{255, 255, 255};
  return fill == kFillZero        ? palette.paper_zero
         : fill == kFillNotFinite ? kFault
         : fill == kFillMasked    ? kHatched
                                  : colour_at(palette.paper, static_cast<int>(fill));
}

std::string paint_of(const Palette& palette, std::size_t fill) {
  if (fill == kFillMasked) return "fill=\"url(#masked)\"";
  return fmt::format("fill=\"{}\"", hex(colour_of(palette, fill)));
}

std::string definitions(const Model& model, const Layout& layout) {
  return "<defs>\n" + gradient(model.palette().paper) + hatching(model, layout) + "</defs>\n";
}

}  // namespace qkv::app::picture
