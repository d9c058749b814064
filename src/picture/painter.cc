// SPDX-License-Identifier: Apache-2.0
#include "picture/painter.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

constexpr Rgb kMarks{120, 120, 120};    // marks of masked cells and zeros
constexpr Rgb kMaskedHalf{84, 84, 84};  // a masked cell of half a character
constexpr Rgb kWhite{255, 255, 255};
constexpr std::array<std::string_view, 5> kShades{" ", "░", "▒", "▓", "█"};
constexpr std::array<std::string_view, 9> kAsciiShades{" ", ":", "-", "=", "+", "*", "#", "%", "@"};

// Around 0, so that the sign is visible: lines are negative.
constexpr std::array<std::string_view, 9> kSignedShades{"▤", "≡", "=", "-", " ",
                                                        "░", "▒", "▓", "█"};
constexpr std::array<std::string_view, 9> kSignedAscii{"M", "m", "=", "-", " ", ":", "+", "#", "@"};

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int n = 0; n < times; ++n) result += text;
  return result;
}

}  // namespace

void Painter::put(const Look& look, std::string_view text, int width) {
  if (colours_ != TerminalColours::kNone && look != look_) {
    // ISO 6429: reset, then the attributes; colours in xterm's syntax.
    std::string code = "\x1b[0";
    if (look.bold) code += ";1";
    const auto add = [&](int kind, const std::optional<Rgb>& colour) {
      if (!colour) return;
      code += colours_ == TerminalColours::k256
                  ? fmt::format(";{};5;{}", kind, nearest_of_256(*colour))
                  : fmt::format(";{};2;{};{};{}", kind, colour->red, colour->green, colour->blue);
    };
    add(38, look.text);
    add(48, look.background);
    line_.text += code + 'm';
    look_ = look;
  }
  line_.text += text;
  line_.width += width;
}

Line Painter::take() {
  put({}, "", 0);
  Line line = std::move(line_);
  line_ = {};
  return line;
}

Rgb CellPainter::colour_of(const Cell& cell) const {
  switch (cell.kind) {
    case CellKind::kNumber:
      return colour_at(model_.palette().terminal, level_of(cell.place));
    case CellKind::kZero:
      return model_.palette().terminal_zero;
    case CellKind::kMasked:
      return kMaskedHalf;
    case CellKind::kNotFinite:
      break;
  }
  return kFault;
}

int CellPainter::shades() const {
  if (model_.palette().centred) return static_cast<int>(kSignedShades.size());
  return static_cast<int>(style_.unicode ? kShades.size() : kAsciiShades.size());
}

std::string_view CellPainter::shade(double place) const {
  if (model_.palette().centred) {
    const auto& shades = style_.unicode ? kSignedShades : kSignedAscii;
    const auto count = static_cast<int>(shades.size());
    return shades[static_cast<std::size_t>(
        std::clamp(static_cast<int>(place * count), 0, count - 1))];
  }
  const auto pick = [&](const auto& shades) {
    const auto count = static_cast<int>(shades.size());
    return shades[static_cast<std::size_t>(
        std::clamp(static_cast<int>(place * count), 0, count - 1))];
  };
  return style_.unicode ? pick(kShades) : pick(kAsciiShades);
}

std::string_view CellPainter::mark_of(const Cell& cell) const {
  switch (cell.kind) {
    case CellKind::kNumber:
      return coloured() ? " " : shade(cell.place);
    case CellKind::kZero:
      return style_.unicode ? "·" : ".";
    case CellKind::kMasked:
      return style_.unicode ? "╱" : "x";
    case CellKind::kNotFinite:
      break;
  }
  return "?";
}

void CellPainter::cell(Painter& painter, const Cell& cell, int width) const {
  Look look;
  if (cell.kind != CellKind::kMasked) look.background = colour_of(cell);
  if (cell.kind == CellKind::kNotFinite) {
    look.text = kWhite;
    look.bold = true;
  } else if (cell.kind != CellKind::kNumber) {
    look.text = kMarks;
  }
  // One dot per zero: a row of zeros must not look busy.
  const std::string_view mark = mark_of(cell);
  const bool once = cell.kind == CellKind::kZero && width > 1;
  painter.put(look, once ? std::string(mark) + repeated(" ", width - 1) : repeated(mark, width),
              width);
}

void CellPainter::pair(Painter& painter, const Cell& upper, const Cell* lower) const {
  const bool masked = upper.kind == CellKind::kMasked;
  if (masked && (lower == nullptr || lower->kind == CellKind::kMasked)) {
    return cell(painter, upper, 1);
  }
  Look look;
  look.text = colour_of(upper);
  if (lower != nullptr) look.background = colour_of(*lower);
  painter.put(look, "▀", 1);
}

void CellPainter::bar(Painter& painter, int width) const {
  for (int n = 0; n < width; ++n) {
    const double place = (n + 0.5) / width;
    if (coloured()) {
      Look look;
      look.background = colour_at(model_.palette().terminal, level_of(place));
      painter.put(look, " ", 1);
    } else {
      painter.put({}, shade(place), 1);
    }
  }
}

}  // namespace qkv::app::picture
