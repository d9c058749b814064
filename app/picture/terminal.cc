// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "picture/label_text.h"
#include "picture/painter.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using namespace picture;  // NOLINT(google-build-using-namespace): this folder's own names

constexpr Index kRoomyRows = 40;   // up to this many, each query always has a line and a label
constexpr Index kRoomyKeys = 200;  // with more keys, two columns each would make too many bands
constexpr int kTallestLabel = 12;  // letters of a key's label, which is vertical
constexpr int kGap = 3;            // columns between panels side by side
constexpr int kBarColumns = 24;
constexpr int kBarColumnsOf256 = 2 * kStepsOf256;
constexpr int kNarrowest = 20;
constexpr Look kBold{.bold = true};

using Block = std::vector<Line>;

int width_of(const Block& block) {
  int width = 0;
  for (const Line& line : block) width = std::max(width, line.width);
  return width;
}

double columns_of(const Cluster& cluster) { return cluster.width; }

class Screen {
 public:
  Screen(const Picture& picture, const TerminalStyle& style)
      : model_(picture, "draw_terminal"), style_(style), cells_(model_, style_) {
    if (style.columns < 1) {
      throw Error("draw_terminal", "style",
                  fmt::format("must have at least 1 column, got {}", style.columns));
    }
    style_.columns = std::max(style.columns, kNarrowest);
    for (const std::string& label : model_.queries().labels) {
      label_width_ = std::max(label_width_, display_width(label));
    }
    label_width_ = std::min(label_width_, std::max(8, style_.columns / 3));
    choose_cells();
  }

  std::string draw() {
    for (const std::string& line : wrapped(shown(model_.title()), style_.columns, columns_of)) {
      say(kBold, line);
    }
    if (bands_ == 1) {
      side_by_side();
    } else {
      for (Index p = 0; p < model_.panels(); ++p) banded(p);
    }
    legend();
    for (const std::string& note : model_.notes()) say_wrapped(shown(note));
    return std::move(text_);
  }

 private:
  // ---- text ---------------------------------------------------------------------------------

  std::string shown(std::string_view text) const {
    return style_.unicode ? simple_emoji(text) : in_ascii(text);
  }
  std::string fitted(const std::string& label, int width) const {
    const std::string text = shown(label);
    if (style_.unicode || display_width(text) <= width) return shortened(text, width);
    return text.substr(0, static_cast<std::size_t>(width - 2)) + "..";
  }
  void say(const Look& look, std::string_view text) {
    Painter painter(style_);
    painter.put(look, text, display_width(text));
    text_ += painter.take().text + '\n';
  }
  void say_wrapped(std::string_view text) {
    for (const std::string& line : wrapped(text, style_.columns, columns_of)) say({}, line);
  }
  void say(const Line& line) { text_ += line.text + '\n'; }

  // ---- sizes --------------------------------------------------------------------------------

  void choose_cells() {
    const Index rows = model_.queries().size();
    const Index keys = model_.keys().size();
    const Index room = style_.columns - label_width_ - 1;
    halves_ = rows > kRoomyRows && cells_.coloured() && style_.unicode;
    const bool roomy =
        rows <= kRoomyRows && (keys * 2 <= room || (keys > room && keys <= kRoomyKeys));
    cell_width_ = roomy ? 2 : 1;
    const Index fit = std::max<Index>(1, room / cell_width_);
    bands_ = (keys + fit - 1) / fit;
    band_ = (keys + bands_ - 1) / bands_;
  }

  // ---- maps ---------------------------------------------------------------------------------

  // The map of the keys [from, to) of a panel, with its title and labels.
  Block map(Index panel, Index from, Index to) const {
    Block block = key_labels(from, to);
    for (Index i = 0; i < model_.queries().size(); i += halves_ ? 2 : 1) {
      Painter painter(style_);
      const std::string& label = model_.queries().labels[static_cast<std::size_t>(i)];
      painter.put({}, padded(fitted(label, label_width_), label_width_, Side::kRight) + ' ',
                  label_width_ + 1);
      for (Index j = from; j < to; ++j) {
        const Cell upper = model_.cell(panel, i, j);
        if (!halves_) {
          cells_.cell(painter, upper, cell_width_);
        } else if (i + 1 < model_.queries().size()) {
          const Cell lower = model_.cell(panel, i + 1, j);
          cells_.pair(painter, upper, &lower);
        } else {
          cells_.pair(painter, upper, nullptr);
        }
      }
      block.push_back(painter.take());
    }
    const Block title = panel_title(panel);
    block.insert(block.begin(), title.begin(), title.end());
    return block;
  }

  Block panel_title(Index panel) const {
    Block block;
    const int width = style_.columns - label_width_ - 1;
    for (const std::string& line : wrapped(shown(model_.panel_title(panel)), width, columns_of)) {
      Painter painter(style_);
      painter.blanks(label_width_ + 1);
      painter.put(kBold, line, display_width(line));
      block.push_back(painter.take());
    }
    return block;
  }

  Block key_labels(Index from, Index to) const {
    return model_.keys().numbered ? numbers_above(from, to) : letters_above(from, to);
  }

  // The key labels as one line of as many round numbers as fit.
  Block numbers_above(Index from, Index to) const {
    const int longest = static_cast<int>(std::to_string(to - 1).size());
    Index step = 1;
    for (const Index next : {2, 5, 10, 20, 50, 100, 200, 500, 1000}) {
      if (step * cell_width_ > longest) break;
      step = next;
    }
    Painter painter(style_);
    int used = 0;
    for (Index j = (from + step - 1) / step * step; j < to; j += step) {
      const int at = label_width_ + 1 + static_cast<int>(j - from) * cell_width_;
      const std::string number = std::to_string(j);
      if (at + static_cast<int>(number.size()) > style_.columns) break;
      painter.blanks(at - used);
      painter.put({}, number, static_cast<int>(number.size()));
      used = at + static_cast<int>(number.size());
    }
    return {painter.take()};
  }

  // The key labels as vertical text that ends at the map. A label wider than its cell takes the
  // place of the next one, which is then omitted.
  Block letters_above(Index from, Index to) const {
    struct Column {
      int at;
      std::vector<Cluster> letters;
    };
    std::vector<std::string> labels;  // the letters are views of these texts
    std::size_t height = 0;
    for (Index j = from; j < to; ++j) {
      labels.push_back(shown(model_.keys().labels[static_cast<std::size_t>(j)]));
    }
    std::vector<Column> columns;
    int free = 0;
    for (std::size_t n = 0; n < labels.size(); ++n) {
      Column column{label_width_ + 1 + static_cast<int>(n) * cell_width_, letters_of(labels[n])};
      int width = 0;
      for (const Cluster& letter : column.letters) width = std::max(width, letter.width);
      if (column.at < free) continue;
      free = column.at + width;
      height = std::max(height, column.letters.size());
      columns.push_back(std::move(column));
    }
    Block block;
    for (std::size_t line = 0; line < height; ++line) {
      Painter painter(style_);
      int used = 0;
      for (const Column& column : columns) {
        const std::size_t above = height - column.letters.size();
        if (line < above) continue;
        const Cluster& letter = column.letters[line - above];
        painter.blanks(column.at - used);
        painter.put({}, isolated(letter.bytes), letter.width);
        used = column.at + letter.width;
      }
      block.push_back(painter.take());
    }
    return block;
  }

  std::vector<Cluster> letters_of(const std::string& label) const {
    std::vector<Cluster> letters = clusters(label);
    std::erase_if(letters, [](const Cluster& letter) { return letter.width == 0; });
    if (letters.size() <= kTallestLabel) return letters;
    letters.resize(kTallestLabel - 1);
    letters.push_back({style_.unicode ? "…" : ".", 1});
    return letters;
  }

  // ---- panels -------------------------------------------------------------------------------

  void side_by_side() {
    std::vector<Block> blocks;
    int width = 0;
    for (Index p = 0; p < model_.panels(); ++p) {
      blocks.push_back(map(p, 0, model_.keys().size()));
      width = std::max(width, width_of(blocks.back()));
    }
    const auto across = static_cast<std::size_t>(
        std::max<Index>(1, (Index{style_.columns} + kGap) / (width + kGap)));
    for (std::size_t first = 0; first < blocks.size(); first += across) {
      paragraph();
      const std::size_t last = std::min(first + across, blocks.size());
      std::size_t height = 0;
      for (std::size_t n = first; n < last; ++n) height = std::max(height, blocks[n].size());
      for (std::size_t line = 0; line < height; ++line) {
        std::string text;
        int missing = 0;
        for (std::size_t n = first; n < last; ++n) {
          // Blocks end on the same line, so that maps are aligned even if some have no title.
          const std::size_t above = height - blocks[n].size();
          const Line piece = line < above ? Line{} : blocks[n][line - above];
          text += std::string(static_cast<std::size_t>(missing), ' ') + piece.text;
          missing = width - piece.width + kGap;
        }
        text_ += text + '\n';
      }
    }
  }

  void banded(Index panel) {
    for (Index from = 0; from < model_.keys().size(); from += band_) {
      const Index to = std::min(from + band_, model_.keys().size());
      paragraph();
      say_wrapped(shown(model_.keys().numbered
                            ? fmt::format("{} {} to {} of {}", model_.column_name(), from, to - 1,
                                          model_.keys().size())
                            : fmt::format("{} to {} of {} {}", from + 1, to, model_.keys().size(),
                                          model_.column_name())));
      for (const Line& line : map(panel, from, to)) say(line);
    }
  }

  void paragraph() {
    if (!text_.empty()) text_ += '\n';
  }

  // ---- legend -------------------------------------------------------------------------------

  int bar_columns() const {
    switch (style_.colours) {
      case TerminalColours::kNone:
        return cells_.steps();
      case TerminalColours::k256:
        return kBarColumnsOf256;
      case TerminalColours::k24Bit:
        break;
    }
    return kBarColumns;
  }

  Line bar() const {
    const std::string low = model_.low_end();
    const std::string high = model_.high_end();
    // The lowest plain mark is a blank, so the marks are in brackets.
    const std::string before = low + (cells_.coloured() ? " " : " [");
    const std::string behind = (cells_.coloured() ? " " : "] ") + high;
    const int room = style_.columns - display_width(before + behind);
    Painter painter(style_);
    painter.put({}, before, display_width(before));
    cells_.bar(painter, std::min(room, bar_columns()));
    painter.put({}, behind, display_width(behind));
    return painter.take();
  }

  Line sample(CellKind kind, const std::string& name) const {
    Painter painter(style_);
    const Cell cell{kind, 0};
    if (halves_ && kind != CellKind::kMasked) {
      cells_.pair(painter, cell, &cell);
    } else {
      cells_.cell(painter, cell, cell_width_);
    }
    painter.put({}, ' ' + name, display_width(name) + 1);
    return painter.take();
  }

  // The bar, its remarks, and a sample of each kind of cell that is not a number.
  Block legend_items() const {
    Block items{bar()};
    for (const std::string& remark :
         wrapped(shown(model_.bar_remark()), style_.columns, columns_of)) {
      items.push_back({remark, display_width(remark)});
    }
    if (cells_.faintest()) {
      const std::string item = "blank: below " + short_number(*cells_.faintest(), 3);
      items.push_back({item, display_width(item)});
    }
    if (model_.has(CellKind::kZero)) items.push_back(sample(CellKind::kZero, "exactly 0"));
    if (model_.has(CellKind::kMasked)) items.push_back(sample(CellKind::kMasked, "masked"));
    if (model_.has(CellKind::kNotFinite)) {
      items.push_back(sample(CellKind::kNotFinite, model_.not_finite_name()));
    }
    return items;
  }

  void legend() {
    paragraph();
    Line line;
    for (const Line& item : legend_items()) {
      if (line.width > 0 && line.width + kGap + item.width > style_.columns) {
        say(line);
        line = {};
      }
      const int gap = line.width > 0 ? kGap : 0;
      line.text += std::string(static_cast<std::size_t>(gap), ' ') + item.text;
      line.width += gap + item.width;
    }
    say(line);
    say_wrapped(shown(
        halves_
            ? fmt::format("rows are {}, two on each line (the label is the upper one's); "
                          "columns are {}",
                          model_.row_name(), model_.column_name())
            : fmt::format("rows are {}, columns are {}", model_.row_name(), model_.column_name())));
  }

  Model model_;
  TerminalStyle style_;
  CellPainter cells_;
  int label_width_ = 0;
  int cell_width_ = 2;
  bool halves_ = false;  // whether a line of text shows two queries
  Index bands_ = 1;
  Index band_ = 1;  // keys in each band
  std::string text_{};
};

}  // namespace

std::string draw_terminal(const Picture& picture, const TerminalStyle& style) {
  return Screen(picture, style).draw();
}

}  // namespace qkv::app
