// SPDX-License-Identifier: Apache-2.0
#include "picture/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <qkv/error.h>

#include "text/text.h"

namespace qkv::app::picture {
namespace {

constexpr int kDecades = 4;  // powers of ten on a logarithmic bar whose low end is not set

template <class T>
double element(const ConstView& view, Index offset) {
  return static_cast<double>(static_cast<const T*>(view.data())[offset]);
}

double read(const ConstView& view, Index offset) {
  switch (view.dtype()) {
    case DType::kFloat64:
      return element<double>(view, offset);
    case DType::kBFloat16:
      return static_cast<double>(
          static_cast<float>(static_cast<const BFloat16*>(view.data())[offset]));
    case DType::kFloat16:
      return static_cast<double>(
          static_cast<float>(static_cast<const Float16*>(view.data())[offset]));
    default:
      return element<float>(view, offset);
  }
}

Index offset_of(const ConstView& view, Index query, Index key) {
  return query * view.stride(0) + key * view.stride(1);
}

Axis axis_of(std::string_view function, std::string_view argument,
             const std::vector<std::string>& labels, Index size) {
  Axis axis;
  if (labels.empty()) {
    axis.numbered = true;
    for (Index i = 0; i < size; ++i) axis.labels.push_back(std::to_string(i));
    return axis;
  }
  if (static_cast<Index>(labels.size()) != size) {
    throw Error(function, argument,
                fmt::format("must be {} labels or none, got {}", size, labels.size()));
  }
  for (const std::string& label : labels) axis.labels.push_back(printable(label));
  return axis;
}

}  // namespace

Model::Model(const Picture& picture, std::string_view function)
    : panels_(picture.panels),
      title_(printable(picture.title)),
      row_name_(printable(picture.row_name)),
      column_name_(printable(picture.column_name)),
      quantity_(printable(picture.quantity)),
      scale_(picture.scale),
      range_(picture.range),
      palette_(palette_of(picture.colours)),
      decades_(kDecades) {
  check_shapes(function);
  queries_ = axis_of(function, "queries", picture.queries, panels_[0].weights.size(0));
  keys_ = axis_of(function, "keys", picture.keys, panels_[0].weights.size(1));
  for (const std::string& note : picture.notes) notes_.push_back(printable(note));
  for (Panel& panel : panels_) panel.title = printable(panel.title);
  if (picture.columns < 0) {
    throw Error(function, "columns", fmt::format("must not be negative, got {}", picture.columns));
  }
  find_ranges(picture, function);
}

std::string Model::panel_title(Index panel) const {
  const std::string& title = at(panel).title;
  if (range_ != ColourRange::kMap) return title;
  const double highest = ranges_[range_of(panel, 0)].highest;
  return fmt::format("{}{}up to {}", title, title.empty() ? "" : ", ", short_number(highest, 3));
}

void Model::check_shapes(std::string_view function) const {
  if (panels_.empty()) throw Error(function, "panels", "must be at least one");
  for (std::size_t p = 0; p < panels_.size(); ++p) {
    const ConstView& weights = panels_[p].weights;
    const ConstView& allowed = panels_[p].allowed;
    const std::string name = fmt::format("panels[{}].weights", p);
    if (!weights.given()) throw Error(function, name, "is absent");
    if (!is_real(weights.dtype())) {
      throw Error(function, name, "must hold real numbers, got " + describe(weights),
                  ErrorKind::kType);
    }
    if (weights.rank() != 2 || weights.element_count() == 0) {
      throw Error(function, name,
                  "must be a matrix [Tq,Tk] of at least one cell, got " + describe(weights));
    }
    if (weights.shape() != panels_[0].weights.shape()) {
      throw Error(function, name,
                  fmt::format("must have the shape of the first panel, {}, got {}",
                              to_string(panels_[0].weights.shape()), to_string(weights.shape())));
    }
    if (!allowed.given()) continue;
    if (allowed.dtype() != DType::kBool || allowed.shape() != weights.shape()) {
      throw Error(
          function, fmt::format("panels[{}].allowed", p),
          fmt::format("must be bool {}, got {}", to_string(weights.shape()), describe(allowed)));
    }
  }
}

double Model::number(Index panel, Index query, Index key) const {
  const ConstView& weights = at(panel).weights;
  return read(weights, offset_of(weights, query, key));
}

Cell Model::cell(Index panel, Index query, Index key) const {
  Cell cell = unplaced(panel, query, key);
  if (cell.kind != CellKind::kNumber) return cell;
  cell.place = place_in(ranges_.empty() ? all_ : ranges_[range_of(panel, query)], cell.value);
  return cell;
}

Cell Model::unplaced(Index panel, Index query, Index key) const {
  const double value = number(panel, query, key);
  const ConstView& allowed = at(panel).allowed;
  if (allowed.given() &&
      !static_cast<const bool*>(allowed.data())[offset_of(allowed, query, key)]) {
    return {CellKind::kMasked, value};
  }
  if (!std::isfinite(value)) return {CellKind::kNotFinite, value};
  // If the bar extends below 0, 0 is a number like the others.
  return {value == 0 && all_.lowest >= 0 ? CellKind::kZero : CellKind::kNumber, value};
}

std::size_t Model::range_of(Index panel, Index query) const {
  const Index row = range_ == ColourRange::kRow ? query : 0;
  const Index rows = range_ == ColourRange::kRow ? queries_.size() : 1;
  return static_cast<std::size_t>(panel * rows + row);
}

void Model::find_ranges(const Picture& picture, std::string_view function) {
  if (range_ == ColourRange::kMap && panels() == 1) range_ = ColourRange::kAll;
  for (const auto& [end, name] :
       {std::pair{picture.highest, "highest"}, {picture.lowest, "lowest"}}) {
    if (!end || range_ == ColourRange::kAll) continue;
    throw Error(function, name, "must not be given if each map or row has its own range");
  }
  if (range_ != ColourRange::kAll) {
    ranges_.assign(range_of(panels() - 1, queries_.size() - 1) + 1, Range{0, -HUGE_VAL});
  }
  found_ = {0, -HUGE_VAL};
  for (Index p = 0; p < panels(); ++p) {
    for (Index i = 0; i < queries_.size(); ++i) {
      for (Index j = 0; j < keys_.size(); ++j) {
        const Cell one = unplaced(p, i, j);
        has_[static_cast<std::size_t>(one.kind)] = true;
        has_infinity_ =
            has_infinity_ || (one.kind == CellKind::kNotFinite && std::isinf(one.value));
        if (one.kind != CellKind::kNumber && one.kind != CellKind::kZero) continue;
        if (one.kind == CellKind::kNumber) smallest_ = std::min(smallest_, one.value);
        for (Range* range : {&found_, ranges_.empty() ? &found_ : &ranges_[range_of(p, i)]}) {
          range->lowest = std::min(range->lowest, one.value);
          range->highest = std::max(range->highest, one.value);
        }
      }
    }
  }
  if (!std::isfinite(found_.highest)) found_.highest = 0;  // there is no number
  for (Range& range : ranges_) set_ends(range);
  all_ = found_;
  set_ends(picture, function);
  bool& zero = has_[static_cast<std::size_t>(CellKind::kZero)];
  if (all_.lowest < 0 && zero) {
    zero = false;
    has_[static_cast<std::size_t>(CellKind::kNumber)] = true;
  }
}

// Sets the ends of the bar of all numbers.
void Model::set_ends(const Picture& picture, std::string_view function) {
  if (picture.highest) {
    if (palette_.centred) all_.lowest = -*picture.highest;
    all_.highest = *picture.highest;
    if (!std::isfinite(all_.highest) || (!picture.lowest && all_.highest <= all_.lowest)) {
      throw Error(function, "highest",
                  fmt::format("must be finite and above {}, the low end, got {}",
                              palette_.centred ? 0 : all_.lowest, all_.highest));
    }
  } else {
    set_ends(all_);
  }
  if (!picture.lowest) return;
  has_set_low_end_ = true;
  all_.lowest = *picture.lowest;
  const auto refuse = [&](const std::string& rule) { throw Error(function, "lowest", rule); };
  if (palette_.centred) refuse("must not be given with colours that are centred at 0");
  if (!std::isfinite(all_.lowest) || all_.lowest >= all_.highest) {
    refuse(fmt::format("must be finite and below {}, the high end, got {}", all_.highest,
                       all_.lowest));
  }
  if (scale_ != ColourScale::kLog) return;
  if (all_.lowest <= 0) refuse(fmt::format("must be above 0 on a log scale, got {}", all_.lowest));
  decades_ = std::log10(all_.highest) - std::log10(all_.lowest);
  if (!(decades_ > 0)) {
    refuse(
        fmt::format("must be farther below {} on a log scale, got {}", all_.highest, all_.lowest));
  }
}

// Turns a range from the smallest to the largest number into the ends of a bar.
void Model::set_ends(Range& range) const {
  if (!std::isfinite(range.highest)) range.highest = 0;
  if (palette_.centred) {
    const double most = std::max(range.highest, -range.lowest);
    range = most > 0 ? Range{-most, most} : Range{-1, 1};
  }
  // If all weights are 0, or all are the same negative number, any bar with two ends will do.
  if (range.highest <= range.lowest) range.highest = range.lowest < 0 ? 0 : 1;
}

double Model::place_in(const Range& range, double value) const {
  if (palette_.centred) {
    const double part = std::min(std::abs(value) / range.highest, 1.0);
    const double away = scale_ == ColourScale::kSqrt  ? std::sqrt(part)
                        : scale_ == ColourScale::kLog ? 1 + std::log10(part) / kDecades
                                                      : part;
    return 0.5 + std::copysign(std::max(away, 0.0) / 2, value);
  }
  if (scale_ == ColourScale::kLog) {
    if (value <= 0 || range.highest <= 0) return 0;
    return std::clamp(1 + std::log10(value / range.highest) / decades_, 0.0, 1.0);
  }
  // Halves are used where the difference of two finite numbers overflows.
  const double half = std::isfinite(range.highest - range.lowest) ? 1 : 0.5;
  const double part =
      (value * half - range.lowest * half) / (range.highest * half - range.lowest * half);
  const double inside = std::clamp(part, 0.0, 1.0);
  return scale_ == ColourScale::kSqrt ? std::sqrt(inside) : inside;
}

// The candidates for ticks, ascending. There may be more than have room.
std::vector<double> Model::round_numbers() const {
  std::vector<double> values;
  const double lowest = all_.lowest;
  const double highest = all_.highest;
  const auto power_below = [](double x) { return std::pow(10.0, std::floor(std::log10(x))); };
  if (palette_.centred) {
    // The tick about half way between the middle and the end is a number of one digit, or a power
    // of ten on the logarithmic scale.
    const bool log = scale_ == ColourScale::kLog;
    const double value = highest * (log ? 0.1 : scale_ == ColourScale::kSqrt ? 0.25 : 0.5);
    const double power = power_below(value);
    const double near = log ? power : std::round(value / power) * power;
    values.push_back(0);
    if (power > 0) values = {-near, 0, near};
  } else if (scale_ == ColourScale::kLog && highest > 0) {
    const double top = std::floor(std::log10(highest) + 1e-9);
    for (int decade = static_cast<int>(decades_) + 1; decade >= 0; --decade) {
      const double value = std::pow(10.0, top - decade);
      if (value >= highest * 0.999 * std::pow(10.0, -decades_)) values.push_back(value);
    }
  } else if (scale_ == ColourScale::kSqrt && lowest == 0) {
    // The ticks are evenly spaced, each moved to the nearest round number.
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double value = part * part * highest;
      const double power = value > 0 ? power_below(value) : 1;
      // Among the smallest (subnormal) numbers the power is 0, and there are no round numbers.
      if (power > 0) values.push_back(std::floor(value / power + 0.5) * power);
    }
  } else {
    const double step = round_up(highest / 4 - lowest / 4);
    const double first = std::ceil(lowest / step);
    constexpr int kMostTicks = 10;  // a step is at least about a quarter of the range
    for (int n = 0; n < kMostTicks; ++n) {
      const double value = (first + n) * step;
      // The limit may overflow, and so may the value after the last tick.
      if (!std::isfinite(value) || value > highest * (1 + 1e-9)) break;
      values.push_back(value);
    }
  }
  return values;
}

std::vector<Tick> Model::ticks() const {
  const double lowest = all_.lowest;
  const double highest = all_.highest;
  if (range_ != ColourRange::kAll) {
    std::vector<Tick> ends{{0, low_end()}, {1, high_end()}};
    if (palette_.centred) ends.insert(ends.begin() + 1, {0.5, "0"});
    return ends;
  }
  const std::vector<double> values = round_numbers();
  int digits = 3;
  // The texts of neighbours must differ: -1000.25 and -1000.5 need six digits.
  if (scale_ == ColourScale::kLinear || (scale_ == ColourScale::kSqrt && lowest != 0)) {
    const double size = std::max(std::abs(lowest), std::abs(highest));
    const double step = round_up(highest / 4 - lowest / 4);
    if (step > 0) digits = std::clamp(static_cast<int>(std::log10(size / step)) + 3, 3, 15);
  }
  // Ticks keep a distance from the ends, except a 0 or a power of ten at the low end.
  constexpr double kNear = 0.12;
  std::vector<Tick> ticks;
  if (has_set_low_end_ || (lowest < 0 && (palette_.centred || scale_ != ColourScale::kLog))) {
    ticks.push_back({0, short_number(lowest, digits)});
  }
  for (const double value : values) {
    Tick tick{place(value), short_number(value, digits)};
    if (tick.place > 1 - kNear || (!ticks.empty() && tick.place < ticks.back().place + kNear))
      continue;
    ticks.push_back(std::move(tick));
  }
  ticks.push_back({1, short_number(highest, digits)});
  return ticks;
}

std::string Model::end_text(double end, bool low) const {
  if (range_ == ColourRange::kAll) return short_number(end, 3);
  if (low && !palette_.centred && end == 0) return "0";
  return !low ? "max" : palette_.centred ? "-max" : "min";
}

std::string Model::bar_label() const { return remarks(quantity_); }

std::string Model::bar_remark() const { return remarks(quantity_ == "weight" ? "" : quantity_); }

std::string Model::remarks(std::string label) const {
  const auto add = [&](const std::string& remark) {
    label += (label.empty() ? "" : ", ") + remark;
  };
  if (scale_ == ColourScale::kSqrt) add("square-root scale");
  if (scale_ == ColourScale::kLog) add("log scale");
  if (range_ == ColourRange::kRow) add("each row has its own range");
  if (range_ == ColourRange::kMap) add("each map has its own range");
  if (range_ != ColourRange::kAll) return label;
  const double smallest = has_set_low_end_ ? smallest_ : found_.lowest;
  if (smallest < all_.lowest) add("down to " + short_number(smallest, 3));
  if (found_.highest > all_.highest) add("up to " + short_number(found_.highest, 3));
  return label;
}

}  // namespace qkv::app::picture
