// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_SVG_PAINT_H_
#define QKV_PICTURE_SVG_PAINT_H_

#include <string>
#include <string_view>

#include "picture/colours.h"
#include "picture/layout.h"
#include "picture/model.h"

// Fills and strokes of an SVG's shapes.
namespace qkv::app::picture {

inline constexpr std::string_view kInk = "#222";
inline constexpr std::string_view kFaint = "#777";
inline constexpr std::string_view kThinLine = "fill=\"none\" stroke=\"#888\" stroke-width=\"0.5\"";
inline constexpr double kBaseline = 0.36;  // from the middle of a text to its baseline, in em

// A cell's fill: a level of the bar, or one of these values.
enum Fill : std::size_t { kFillZero = kLevels, kFillMasked, kFillNotFinite, kFills };

std::size_t fill_of(const Cell& cell);

// A fill's colour, which is white for hatching.
Rgb colour_of(const Palette& palette, std::size_t fill);

// The fill attribute of a path in units of cells.
std::string paint_of(const Palette& palette, std::size_t fill);

// The definitions in the SVG: the gradient "bar", and the hatching "masked" if it is needed.
std::string definitions(const Model& model, const Layout& layout);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_SVG_PAINT_H_
