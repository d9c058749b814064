// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_SVG_LEGEND_H_
#define QKV_PICTURE_SVG_LEGEND_H_

#include "picture/layout.h"
#include "picture/model.h"
#include "picture/svg_writer.h"

namespace qkv::app::picture {

// Draws the legend below the maps: the bar under its label, and a sample of each kind of cell that
// is not a number.
void draw_legend(SvgWriter& svg, const Model& model, const Layout& layout);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_SVG_LEGEND_H_
