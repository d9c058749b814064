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

// The shades of numbers around 0. Negative numbers have marks of their own, so that the sign is
// visible.
constexpr std::array<std::string_view, 9> kSignedShades{"▤", "≡", "=", "-", " ",
                                                        "░", "▒", "▓", "█"};
constexpr std::array<std::string_view, 9> kSignedAscii{"M", "m", "=", "-", " ", ":", "+", "#", "@"};

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int n = 0; n < times; ++n) result += text;
  return result;
}

// Returns s / n / 2, where s is the largest sum of a row and n the largest number of unmasked keys
// in a row: half of each weight in a row that divides s equally among n keys. It is half, so that a
// nearly even row is not a random pattern of blanks.
double least_notable(const Model& model) {
  double heaviest = 0;
  Index most = 1;
  for (Index p = 0; p < model.panels(); ++p) {
    for (Index i = 0; i < model.queries().size(); ++i) {
      double sum = 0;
      Index seen = 0;
      for (Index j = 0; j < model.keys().size(); ++j) {
        const Cell cell = model.cell(p, i, j);
        if (cell.kind == CellKind::kMasked) continue;
        ++seen;
        if (cell.kind == CellKind::kNumber) sum += cell.value;
      }
      heaviest = std::max(heaviest, sum);
      most = std::max(most, seen);
    }
  }
  return heaviest / static_cast<double>(most) / 2;
}

}  // namespace

void Painter::put(const Look& look, std::string_view text, int width) {
  if (colours_ != TerminalColours::kNone && look != look_) {
    // The code of ISO 6429: a reset, then the attributes, with colours in xterm's syntax.
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

CellPainter::CellPainter(const Model& model, const TerminalStyle& style)
    : model_(model), style_(style) {
  if (coloured() || model.palette().centred || model.lowest() != 0 || !model.has_one_range())
    return;
  const double least = least_notable(model);
  if (least > 0 && step_of(model.place(least)) == 0) faintest_ = least;
}

int CellPainter::steps() const {
  switch (style_.colours) {
    case TerminalColours::kNone:
      if (model_.palette().centred) return static_cast<int>(kSignedShades.size());
      return static_cast<int>(style_.unicode ? kShades.size() : kAsciiShades.size());
    case TerminalColours::k256:
      return has_steps() ? kStepsOf256 : kLevels;
    case TerminalColours::k24Bit:
      break;
  }
  return kLevels;
}

int CellPainter::step_of(double place) const {
  return std::clamp(static_cast<int>(place * steps()), 0, steps() - 1);
}

bool CellPainter::has_steps() const {
  return style_.colours == TerminalColours::k256 && &model_.palette().terminal == &terminal_bar();
}

Rgb CellPainter::colour_at(double place) const {
  return has_steps() ? terminal_step(step_of(place))
                     : picture::colour_at(model_.palette().terminal, level_of(place));
}

Rgb CellPainter::colour_of(const Cell& cell) const {
  switch (cell.kind) {
    case CellKind::kNumber:
      return colour_at(cell.place);
    case CellKind::kZero:
      return model_.palette().terminal_zero;
    case CellKind::kMasked:
      return kMaskedHalf;
    case CellKind::kNotFinite:
      break;
  }
  return kFault;
}

std::string_view CellPainter::shade(int step) const {
  const auto at = static_cast<std::size_t>(step);
  if (model_.palette().centred) return style_.unicode ? kSignedShades[at] : kSignedAscii[at];
  return style_.unicode ? kShades[at] : kAsciiShades[at];
}

std::string_view CellPainter::mark_of(const Cell& cell) const {
  switch (cell.kind) {
    case CellKind::kNumber:
      if (coloured()) return " ";
      return shade(std::max(step_of(cell.place), faintest_ && cell.value >= *faintest_ ? 1 : 0));
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
  // A zero has one dot in any width, so that a row of zeros does not look busy.
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
      look.background = colour_at(place);
      painter.put(look, " ", 1);
    } else {
      painter.put({}, shade(step_of(place)), 1);
    }
  }
}

}  // namespace qkv::app::picture
