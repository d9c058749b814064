// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_LAYOUT_H_
#define QKV_PICTURE_LAYOUT_H_

#include <string>
#include <string_view>
#include <vector>

#include "picture/model.h"

// The layout on paper, in the units of the SVG (CSS pixels). No label is truncated, since there is
// room for the longest.
namespace qkv::app::picture {

// The width of a text in ems of "DejaVu Sans Mono". Characters that this font lacks count with the
// largest width that other fonts need for them.
double em_width(std::string_view text);

// Breaks the text into lines of at most `ems` ems.
std::vector<std::string> wrapped_ems(std::string_view text, double ems);

// How the labels of one axis are drawn: every `step`-th of them.
struct Labels {
  double size = 11;  // font size
  Index step = 1;
  bool rotated = false;  // for keys only: by 90 degrees, read from below
  double extent = 0;     // space that the labels take at right angles to their axis
};

inline constexpr double kMargin = 16;
inline constexpr double kTitleSize = 14;
inline constexpr double kSmallSize = 10;  // font size of axis names, bar and notes
inline constexpr double kPanelTitleSize = 11;
inline constexpr double kLine = 1.4;  // line spacing in font sizes
inline constexpr double kPanelGap = 18;
inline constexpr double kLabelGap = 5;  // between a label and its row or column

struct Layout {
  double cell_width = 1;
  double cell_height = 1;
  Index grid_columns = 1;  // at most one for each panel
  Labels queries{};
  Labels keys{};
  bool numbers = false;  // whether the cells show their numbers
  std::vector<std::string> title{};
  double left = 0;    // left edge of the first map
  double top = 0;     // top edge of the first map
  double across = 0;  // horizontal distance from one map to the next
  double down = 0;    // vertical distance from one map to the next
  double map_width = 0;
  double map_height = 0;
  double grid_right = 0;
  double grid_bottom = 0;
  double text_width = 0;  // width of title, legend and notes
};

// Lays out a picture with `columns` panels in a row; 0 chooses the number that makes its shape most
// like that of a page.
Layout lay_out(const Model& model, Index columns);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_LAYOUT_H_
