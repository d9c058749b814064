// SPDX-License-Identifier: Apache-2.0
#include "picture/model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include <qkv/error.h>

#include "text/text.h"

namespace qkv::app::picture {
namespace {

constexpr int kDecades = 4;  // of the logarithmic bar

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

// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below x > 0.
double round_up(double x) {
  const double power = std::pow(10.0, std::floor(std::log10(x)));
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    // Numbers that are round up to the rounding of the quotient count as round.
    if (m * power >= x * (1 - 1e-9)) return m * power;
  }
  return 10 * power;
}

}  // namespace

std::string short_number(double value, int digits) {
  return value == 0 ? "0" : fmt::format("{:.{}g}", value, digits);
}

Model::Model(const Picture& picture, std::string_view function)
    : panels_(picture.panels), title_(printable(picture.title)), scale_(picture.scale) {
  check_shapes(function);
  queries_ = axis_of(function, "queries", picture.queries, panels_[0].weights.size(0));
  keys_ = axis_of(function, "keys", picture.keys, panels_[0].weights.size(1));
  for (const std::string& note : picture.notes) notes_.push_back(printable(note));
  for (Panel& panel : panels_) panel.title = printable(panel.title);
  if (picture.columns < 0) {
    throw Error(function, "columns", fmt::format("must not be negative, got {}", picture.columns));
  }
  find_range(picture, function);
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
  const double value = number(panel, query, key);
  const ConstView& allowed = at(panel).allowed;
  if (allowed.given() &&
      !static_cast<const bool*>(allowed.data())[offset_of(allowed, query, key)]) {
    return {CellKind::kMasked, value};
  }
  if (!std::isfinite(value)) return {CellKind::kNotFinite, value};
  // If there are negative numbers, 0 is not special.
  return {value == 0 && lowest_ == 0 ? CellKind::kZero : CellKind::kNumber, value};
}

void Model::find_range(const Picture& picture, std::string_view function) {
  double smallest = 0;
  bool any = false;
  for (Index p = 0; p < panels(); ++p) {
    for (Index i = 0; i < queries_.size(); ++i) {
      for (Index j = 0; j < keys_.size(); ++j) {
        const Cell one = cell(p, i, j);
        has_[static_cast<std::size_t>(one.kind)] = true;
        has_infinity_ =
            has_infinity_ || (one.kind == CellKind::kNotFinite && std::isinf(one.value));
        if (one.kind != CellKind::kNumber && one.kind != CellKind::kZero) continue;
        smallest = std::min(smallest, one.value);
        largest_ = any ? std::max(largest_, one.value) : one.value;
        any = true;
      }
    }
  }
  lowest_ = smallest;
  if (lowest_ < 0 && has_[static_cast<std::size_t>(CellKind::kZero)]) {
    has_[static_cast<std::size_t>(CellKind::kZero)] = false;
    has_[static_cast<std::size_t>(CellKind::kNumber)] = true;
  }
  highest_ = picture.highest.value_or(largest_);
  if (picture.highest && (!std::isfinite(highest_) || highest_ <= lowest_)) {
    throw Error(function, "highest",
                fmt::format("must be finite and above {}, the low end, got {}", lowest_, highest_));
  }
  // All weights 0, or all the same negative number: any bar with two ends will do.
  if (highest_ <= lowest_) highest_ = lowest_ < 0 ? 0 : 1;
}

double Model::place(double value) const {
  // Uses halves, since the difference of two finite numbers may overflow.
  const double half = std::isfinite(highest_ - lowest_) ? 1 : 0.5;
  const double part = (value * half - lowest_ * half) / (highest_ * half - lowest_ * half);
  if (scale_ == ColourScale::kLog) {
    if (value <= 0 || highest_ <= 0) return 0;
    return std::clamp(1 + std::log10(value / highest_) / kDecades, 0.0, 1.0);
  }
  const double inside = std::clamp(part, 0.0, 1.0);
  return scale_ == ColourScale::kSqrt ? std::sqrt(inside) : inside;
}

std::vector<Tick> Model::ticks() const {
  std::vector<double> values;
  int digits = 3;
  if (scale_ == ColourScale::kLog && highest_ > 0) {
    const double top = std::floor(std::log10(highest_) + 1e-9);
    for (int decade = kDecades; decade >= 0; --decade) {
      const double value = std::pow(10.0, top - decade);
      if (value >= highest_ * 0.999e-4) values.push_back(value);
    }
  } else if (scale_ == ColourScale::kSqrt && lowest_ == 0) {
    // Evenly spaced places, each moved to the nearest round number.
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double value = part * part * highest_;
      const double power = value > 0 ? std::pow(10.0, std::floor(std::log10(value))) : 1;
      // There are no round numbers among the smallest.
      if (power > 0) values.push_back(std::floor(value / power + 0.5) * power);
    }
  } else {
    const double step = round_up(highest_ / 4 - lowest_ / 4);
    const double first = std::ceil(lowest_ / step);
    constexpr int kMostTicks = 10;  // a step is at least a fifth of the range
    for (int n = 0; n < kMostTicks; ++n) {
      const double value = (first + n) * step;
      // The limit may overflow, and so may the step after it.
      if (!std::isfinite(value) || value > highest_ * (1 + 1e-9)) break;
      values.push_back(value);
    }
    // Neighbours must differ: -1000.25 and -1000.5 need six digits.
    const double size = std::max(std::abs(lowest_), std::abs(highest_));
    if (step > 0) digits = std::clamp(static_cast<int>(std::log10(size / step)) + 3, 3, 15);
  }
  // Ticks keep a distance from the ends, except a 0 or a power of ten at the low end.
  constexpr double kNear = 0.12;
  std::vector<Tick> ticks;
  if (lowest_ < 0 && scale_ != ColourScale::kLog)
    ticks.push_back({0, short_number(lowest_, digits)});
  for (const double value : values) {
    Tick tick{place(value), short_number(value, digits)};
    if (tick.place > 1 - kNear || (!ticks.empty() && tick.place < ticks.back().place + kNear))
      continue;
    ticks.push_back(std::move(tick));
  }
  ticks.push_back({1, short_number(highest_, digits)});
  return ticks;
}

std::string Model::bar_remark() const {
  std::string remark;
  if (scale_ == ColourScale::kSqrt) remark = "square-root scale";
  if (scale_ == ColourScale::kLog) remark = "log scale";
  if (largest_ > highest_) {
    remark += fmt::format("{}up to {}", remark.empty() ? "" : ", ", short_number(largest_, 3));
  }
  return remark;
}

}  // namespace qkv::app::picture
