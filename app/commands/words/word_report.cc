// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/utf8.h>

#include "commands/shell/json_values.h"
#include "commands/words/words.h"
#include "picture/columns.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::picture::Column;
using qkv::app::picture::padded;
using qkv::app::picture::Side;

constexpr int kWidestName = 12;

// The results of one head, as views without the head axis.
struct Head {
  qkv::ConstView weights;
  qkv::ConstView top_weights;
  qkv::ConstView top_keys;
};

Head head_of(const WordAttention& attention, Index head, bool heads) {
  const auto view = [&](const qkv::Tensor& tensor) -> qkv::ConstView {
    if (!tensor.given() || !heads) return tensor.view();
    const qkv::ConstView one = qkv::slice(tensor.view(), 0, head, head + 1);
    return qkv::reshape(one, {tensor.size(1), tensor.size(2)});
  };
  return {view(attention.weights), view(attention.top_weights), view(attention.top_keys)};
}

// The token that a word attends to most, apart from the word's own position, and its weight:
// "street 0.0541"; "-" if there is none.
std::string strongest_other(const WordInput& input, const Head& head, Index word) {
  for (Index n = 0; n < head.top_keys.size(1); ++n) {
    const Index key = head.top_keys.at<std::int64_t>({word, n});
    if (key == word || key < 0) continue;
    return fmt::format(
        "{} {:.4f}", qkv::app::shortened(input.tokens[static_cast<std::size_t>(key)], kWidestName),
        head.top_weights.at<double>({word, n}));
  }
  return "-";
}

std::string table(const WordInput& input, const Head& head, int limit) {
  std::vector<std::string> names;
  names.reserve(input.tokens.size());
  for (const std::string& token : input.tokens) {
    names.push_back(qkv::app::shortened(token, kWidestName));
  }
  std::vector<Column> columns;
  const auto words = static_cast<Index>(names.size());
  for (Index j = 0; j < words; ++j) {
    Column column{.head = names[static_cast<std::size_t>(j)]};
    for (Index i = 0; i < words; ++i) {
      const double weight = head.weights.at<double>({i, j});  // the sign of NaN is the machine's
      column.cells.push_back(std::isnan(weight) ? "nan" : fmt::format("{:.4f}", weight));
    }
    columns.push_back(std::move(column));
  }
  Column strongest{.head = "strongest other", .side = Side::kLeft};
  for (Index i = 0; i < words; ++i) strongest.cells.push_back(strongest_other(input, head, i));
  columns.push_back(std::move(strongest));
  return qkv::app::picture::in_bands(names, columns, limit);
}

std::string links(const WordInput& input, const Head& head) {
  std::string text;
  for (std::size_t i = 0; i < input.tokens.size(); ++i) {
    text += fmt::format(
        "{:>6} {} -> {}\n", i + 1,
        padded(qkv::app::shortened(input.tokens[i], kWidestName), kWidestName, Side::kLeft),
        strongest_other(input, head, static_cast<Index>(i)));
  }
  return text;
}

}  // namespace

std::string parameters_text(const WordAttention& attention, const WordsOptions& options) {
  if (attention.parameters.empty()) return "";
  if (!options.params.empty()) return "params " + qkv::app::on_one_line(options.params);
  std::string names = "projections";  // of heads
  if (options.heads == 0) {
    names.clear();
    for (const Parameter& parameter : attention.parameters) {
      names += (names.empty() ? "" : ", ") + parameter.name;
    }
  }
  return fmt::format("{} random (seed {})", names, options.seed);
}

std::string word_report(const WordInput& input, const WordAttention& attention,
                        const WordsOptions& options, const Expressions& expressions,
                        const WordScreen& screen) {
  const auto words = static_cast<Index>(input.tokens.size());
  nlohmann::ordered_json settings;
  settings["score"] = name_of(options.score);
  settings["scale"] = attention.scale;
  settings.update(settings_of(expressions));
  const std::string parameters = parameters_text(attention, options);
  std::string text = qkv::app::picture::in_lines(
      fmt::format("words {}, width {} ({}); {}{}{}", words, input.x.size(1),
                  qkv::app::on_one_line(input.source), settings_text(settings),
                  parameters.empty() ? "" : "; ", parameters),
      screen.columns);
  if (!screen.map.empty()) text += "\n" + screen.map;
  for (Index h = 0; h < std::max<Index>(1, options.heads); ++h) {
    const Head head = head_of(attention, h, options.heads > 0);
    text += options.heads > 0 ? fmt::format("\nhead {}\n", h) : "\n";
    text += words <= kLongestTable ? table(input, head, screen.columns) : links(input, head);
  }
  if (words > kLongestTable) {
    text +=
        "\n" + qkv::app::picture::in_lines(
                   fmt::format("The table of {} x {} weights is not shown; -o FILE.npz keeps it.",
                               words, words),
                   screen.columns);
  }
  return text;
}
