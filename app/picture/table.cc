// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "picture/columns.h"
#include "picture/model.h"

namespace qkv::app {
namespace {

using picture::Cell;
using picture::CellKind;
using picture::Model;

constexpr double kLongNumber = 1e6;

// The text of a cell. Exact zero is "0", while "0.0000" is a small number.
std::string number_text(const Cell& cell) {
  if (cell.kind == CellKind::kMasked) return "-";
  if (cell.kind == CellKind::kNotFinite) {
    return std::isnan(cell.value) ? "nan" : cell.value > 0 ? "inf" : "-inf";
  }
  if (cell.value == 0) return "0";
  return std::abs(cell.value) < kLongNumber ? fmt::format("{:.4f}", cell.value)
                                            : fmt::format("{:.4e}", cell.value);
}

std::string panel_table(const Model& model, Index panel, int limit) {
  std::vector<picture::Column> columns;
  for (Index j = 0; j < model.keys().size(); ++j) {
    picture::Column column{.head = model.keys().labels[static_cast<std::size_t>(j)]};
    for (Index i = 0; i < model.queries().size(); ++i) {
      column.cells.push_back(number_text(model.cell(panel, i, j)));
    }
    columns.push_back(std::move(column));
  }
  return picture::in_bands(model.queries().labels, columns, limit);
}

}  // namespace

std::string draw_table(const Picture& picture, int columns) {
  if (columns < 0) {
    throw Error("draw_table", "columns", fmt::format("must not be negative, got {}", columns));
  }
  const Model model(picture, "draw_table");
  std::string text;
  const auto paragraph = [&] {
    if (!text.empty()) text += '\n';
  };
  const auto say = [&](const std::string& line) { text += picture::in_lines(line, columns); };
  if (!model.title().empty()) say(model.title());
  for (Index p = 0; p < model.panels(); ++p) {
    paragraph();
    if (!model.panel_title(p).empty()) say(model.panel_title(p));
    text += panel_table(model, p, columns);
  }
  std::string legend =
      fmt::format("rows are {}, columns are {}", model.row_name(), model.column_name());
  if (model.has(CellKind::kMasked)) legend += "; - is masked";
  text += '\n';
  say(legend);
  for (const std::string& note : model.notes()) say(note);
  return text;
}

}  // namespace qkv::app
