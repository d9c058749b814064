// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <qkv/app/picture.h>

#include "picture/label_text.h"
#include "picture/model.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using picture::Cell;
using picture::CellKind;
using picture::Model;

constexpr double kLongNumber = 1e6;

// Exact zero is "0": 0.0000 is a small number.
std::string number_text(const Cell& cell) {
  if (cell.kind == CellKind::kMasked) return "-";
  if (cell.kind == CellKind::kNotFinite) {
    return std::isnan(cell.value) ? "nan" : cell.value > 0 ? "inf" : "-inf";
  }
  if (cell.value == 0) return "0";
  return std::abs(cell.value) < kLongNumber ? fmt::format("{:.4f}", cell.value)
                                            : fmt::format("{:.4e}", cell.value);
}

std::string panel_table(const Model& model, Index panel) {
  const std::vector<std::string>& keys = model.keys().labels;
  const std::vector<std::string>& queries = model.queries().labels;
  int label = 0;
  for (const std::string& query : queries) label = std::max(label, display_width(query));
  std::vector<int> widths;
  for (Index j = 0; j < model.keys().size(); ++j) {
    int width = display_width(keys[static_cast<std::size_t>(j)]);
    for (Index i = 0; i < model.queries().size(); ++i) {
      width = std::max(width, static_cast<int>(number_text(model.cell(panel, i, j)).size()));
    }
    widths.push_back(width);
  }
  std::string text(static_cast<std::size_t>(label), ' ');
  for (std::size_t j = 0; j < keys.size(); ++j) {
    text += "  " + picture::padded(keys[j], widths[j], picture::Side::kRight);
  }
  for (Index i = 0; i < model.queries().size(); ++i) {
    const std::string& query = queries[static_cast<std::size_t>(i)];
    text += '\n' + picture::padded(query, label, picture::Side::kLeft);
    for (Index j = 0; j < model.keys().size(); ++j) {
      text += fmt::format("  {:>{}}", number_text(model.cell(panel, i, j)),
                          widths[static_cast<std::size_t>(j)]);
    }
  }
  return text + '\n';
}

}  // namespace

std::string draw_table(const Picture& picture) {
  const Model model(picture, "draw_table");
  std::string text;
  const auto paragraph = [&] {
    if (!text.empty()) text += '\n';
  };
  if (!model.title().empty()) text += model.title() + '\n';
  for (Index p = 0; p < model.panels(); ++p) {
    paragraph();
    if (!model.panel_title(p).empty()) text += model.panel_title(p) + '\n';
    text += panel_table(model, p);
  }
  std::string legend =
      fmt::format("rows are {}, columns are {}", model.row_name(), model.column_name());
  if (model.has(CellKind::kMasked)) legend += "; - is masked";
  text += '\n' + legend + '\n';
  for (const std::string& note : model.notes()) text += note + '\n';
  return text;
}

}  // namespace qkv::app
