// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_MODEL_H_
#define QKV_PICTURE_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/picture.h>

// Shared by all renderers of a picture: the checks, the range, the place of each number on the
// bar, displayable labels. Only the drawing differs.
namespace qkv::app::picture {

// Zero, masked and not finite look different from each other and from every number.
enum class CellKind { kNumber, kZero, kMasked, kNotFinite };

struct Cell {
  CellKind kind = CellKind::kNumber;
  double value = 0;
};

struct Tick {
  double place = 0;  // 0: the bar's low end, 1: its high end
  std::string text{};
};

// One axis: labels as displayed, one for each row or column.
struct Axis {
  std::vector<std::string> labels{};
  bool numbered = false;  // no labels were given: 0, 1, 2, ...
  Index size() const { return static_cast<Index>(labels.size()); }
};

class Model {
 public:
  // Throws Error of the public function for an invalid Picture. Keeps the views, not the picture.
  Model(const Picture& picture, std::string_view function);

  Index panels() const { return static_cast<Index>(panels_.size()); }
  const std::string& panel_title(Index panel) const { return at(panel).title; }
  const Axis& queries() const { return queries_; }
  const Axis& keys() const { return keys_; }
  const std::string& title() const { return title_; }
  const std::vector<std::string>& notes() const { return notes_; }
  ColourScale scale() const { return scale_; }

  Cell cell(Index panel, Index query, Index key) const;
  // The place of a finite number on the bar, in [0,1].
  double place(double value) const;
  // The ends of the bar, lowest < highest: from the smallest number or 0 to the largest.
  double lowest() const { return lowest_; }
  double highest() const { return highest_; }
  // Round numbers on the bar, ascending, including its two ends: at most five.
  std::vector<Tick> ticks() const;
  // Names the scale and what is clipped at the bar's ends; empty if neither applies.
  std::string bar_remark() const;

  // The kinds of cells that occur: the legend explains only these.
  bool has(CellKind kind) const { return has_[static_cast<std::size_t>(kind)]; }
  // "NaN", or "not finite" if there are infinities too.
  std::string not_finite_name() const { return has_infinity_ ? "not finite" : "NaN"; }

 private:
  const Panel& at(Index panel) const { return panels_[static_cast<std::size_t>(panel)]; }
  double number(Index panel, Index query, Index key) const;
  void check_shapes(std::string_view function) const;
  void find_range(const Picture& picture, std::string_view function);

  std::vector<Panel> panels_;
  Axis queries_;
  Axis keys_;
  std::string title_;
  std::vector<std::string> notes_;
  ColourScale scale_;
  double lowest_ = 0;
  double highest_ = 1;
  double largest_ = 0;  // may be above highest_
  bool has_[4] = {};
  bool has_infinity_ = false;
};

// "0.25", "1e-06", "12": at most that many significant digits, no trailing zeros.
std::string short_number(double value, int digits);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_MODEL_H_
