// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_MODEL_H_
#define QKV_PICTURE_MODEL_H_

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/picture.h>

#include "picture/palettes.h"
#include "picture/ticks.h"

// The parts that all renderers of a picture share: the checks, the range, the place of each number
// on the bar, displayable labels. Only the drawing differs.
namespace qkv::app::picture {

// The kind of a cell. Zeros, masked cells and non-finite numbers look different from each other and
// from every number.
enum class CellKind { kNumber, kZero, kMasked, kNotFinite };

struct Cell {
  CellKind kind = CellKind::kNumber;
  double value = 0;
  double place = 0;  // the number's place in its range, 0 to 1
};

// The numbers at the ends of the bar, lowest < highest.
struct Range {
  double lowest = 0;
  double highest = 1;
};

// One axis: labels as displayed, one for each row or column.
struct Axis {
  std::vector<std::string> labels{};
  bool numbered = false;  // whether the labels are 0, 1, 2, ..., since none were given
  Index size() const { return static_cast<Index>(labels.size()); }
};

class Model {
 public:
  // Throws Error in the name of the public `function` for an invalid Picture. Keeps the views of
  // the weights, but not the picture.
  Model(const Picture& picture, std::string_view function);

  Index panels() const { return static_cast<Index>(panels_.size()); }
  // The title of a panel, with the high end of the map's range if each map has its own.
  std::string panel_title(Index panel) const;
  const Axis& queries() const { return queries_; }
  const Axis& keys() const { return keys_; }
  const std::string& title() const { return title_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& row_name() const { return row_name_; }
  const std::string& column_name() const { return column_name_; }
  ColourScale scale() const { return scale_; }
  const Palette& palette() const { return palette_; }

  Cell cell(Index panel, Index query, Index key) const;
  // The place of a finite number on a bar of all numbers, in [0,1].
  double place(double value) const { return place_in(all_, value); }
  // The ends of a bar of all numbers: the smallest number or 0, and the largest, unless the picture
  // sets them. If 0 is the middle of the bar, both ends are as far from it as the farthest number.
  double lowest() const { return all_.lowest; }
  double highest() const { return all_.highest; }
  // Whether all maps and rows share the bar of all numbers.
  bool has_one_range() const { return ranges_.empty(); }
  // A few ticks on the bar, ascending: its ends (the low end of a logarithmic bar may have none),
  // and round numbers between them. If maps or rows have ranges of their own, the ends have names
  // instead of numbers.
  std::vector<Tick> ticks() const;
  // The texts of the bar's ends, for renderers without room for other ticks.
  std::string low_end() const { return end_text(all_.lowest, true); }
  std::string high_end() const { return end_text(all_.highest, false); }
  // The bar's label: the name of the numbers, the scale, and how far numbers go beyond the ends.
  std::string bar_label() const;
  // The bar's label, without the name of the numbers if it is the usual "weight". May be empty.
  std::string bar_remark() const;

  // Whether a kind of cell occurs: the legend explains only those that do.
  bool has(CellKind kind) const { return has_[static_cast<std::size_t>(kind)]; }
  // The legend's name of non-finite numbers: "NaN", or "not finite" if there are infinities.
  std::string not_finite_name() const { return has_infinity_ ? "not finite" : "NaN"; }

 private:
  const Panel& at(Index panel) const { return panels_[static_cast<std::size_t>(panel)]; }
  double number(Index panel, Index query, Index key) const;
  Cell unplaced(Index panel, Index query, Index key) const;
  double place_in(const Range& range, double value) const;
  std::size_t range_of(Index panel, Index query) const;
  void check_shapes(std::string_view function) const;
  void find_ranges(const Picture& picture, std::string_view function);
  void set_ends(const Picture& picture, std::string_view function);
  void set_ends(Range& range) const;
  std::vector<double> round_numbers() const;
  std::string end_text(double end, bool low) const;
  std::string remarks(std::string label) const;

  std::vector<Panel> panels_;
  Axis queries_;
  Axis keys_;
  std::string title_;
  std::vector<std::string> notes_;
  std::string row_name_;
  std::string column_name_;
  std::string quantity_;
  ColourScale scale_;
  ColourRange range_;
  Palette palette_;
  Range all_{};
  std::vector<Range> ranges_{};   // of each map or of each row; empty if all_ is the only range
  Range found_{};                 // the smallest number or 0, and the largest; may be outside all_
  double smallest_ = HUGE_VAL;    // the smallest number other than 0
  bool has_set_low_end_ = false;  // whether the picture sets the low end
  double decades_;                // powers of ten on the logarithmic bar
  bool has_[4] = {};
  bool has_infinity_ = false;
};

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_MODEL_H_
