// SPDX-License-Identifier: Apache-2.0
// The command `qkv stats`, which summarises the heads of an attention file and warns about those
// that look wrong.
#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/attention_stats.h>
#include <qkv/app/utf8.h>

#include "commands/shell/array_store.h"
#include "commands/shell/console.h"
#include "commands/shell/json_values.h"
#include "commands/shell/outputs.h"
#include "commands/shell/terminal.h"
#include "commands/view/attention_input.h"
#include "commands/view/commands.h"
#include "picture/columns.h"
#include "text/text.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::AttentionFile;
using qkv::app::HeadReport;
using qkv::app::HeadStatistics;
using qkv::app::LeadingAxis;
using qkv::app::Warning;

constexpr const char* kStatsFooter = R"(Examples:
  qkv stats a.npz
  qkv stats a.npz --heads 0-1 --json -o stats.npz

One line per head with means over its rows that have weights: entropy -sum w ln w in nats (0: one
key, ln Tk: uniform), distance sum w |i - j|, first key: the weight of key 0, top key: the key
with the largest mean weight, and that weight. Also counts rows that do not sum to 1 (within 1e-4,
for 16-bit types 1e-2), rows of zeros, rows with NaN or infinity. Rows whose query is padding
([PAD], <pad>), or that are fully masked, are left out.

Warnings follow about heads that show common faults: NaN, negative weights, rows that do not sum
to 1, a transposed map, weight on masked pairs or on padding ([PAD], <pad>), one key that receives
nearly all weight, rows that attend most to the next or previous key, a causal map that attends to
the next key, rows that attend to all keys equally. Heads of good models may do some of this; qkv
view draws them.)";

struct StatsOptions {
  AttentionInput input{};
  HeadChoice choice{};
  OutputOptions outputs{};
};

struct Stats {
  AttentionFile file{};
  qkv::Dims shape{};  // [N,L,H] of the selected heads
  std::vector<HeadReport> heads{};
};

// A number of each head: a column of the table, a member of the JSON, an array [N,L,H] in files.
struct Column {
  std::string_view name;   // in JSON and files
  std::string_view title;  // in the table
  double (*value)(const HeadStatistics& head);
  int digits;  // digits after the point; 0 for counts
};
constexpr Column kColumns[] = {
    {"entropy", "entropy", [](const HeadStatistics& h) { return h.entropy; }, 4},
    {"distance", "distance", [](const HeadStatistics& h) { return h.distance; }, 3},
    {"first_key", "first key", [](const HeadStatistics& h) { return h.first_key; }, 4},
    {"wrong_rows", "sum not 1",
     [](const HeadStatistics& h) { return static_cast<double>(h.wrong_rows); }, 0},
    {"zero_rows", "zero", [](const HeadStatistics& h) { return static_cast<double>(h.zero_rows); },
     0},
    {"nan_rows", "NaN", [](const HeadStatistics& h) { return static_cast<double>(h.nan_rows); }, 0},
};

struct AxisColumn {
  LeadingAxis axis;
  std::string_view name;
  Index HeadStatistics::*member;
};
constexpr AxisColumn kAxisColumns[] = {
    {LeadingAxis::kExamples, "example", &HeadStatistics::example},
    {LeadingAxis::kLayers, "layer", &HeadStatistics::layer},
    {LeadingAxis::kHeads, "head", &HeadStatistics::head}};

const std::string* top_token(const AttentionFile& file, const HeadStatistics& head) {
  if (head.top_key < 0 || file.src.empty()) return nullptr;
  return &file.src[static_cast<std::size_t>(head.example)][static_cast<std::size_t>(head.top_key)];
}

// A number with `digits` digits after the point. If digits > 0 and its size is 1e6 or more, as in a
// file of scores whose masked keys hold -1e9, it has three significant digits instead.
std::string shown(double value, int digits) {
  constexpr double kLargestInFull = 1e6;
  if (digits > 0 && std::fabs(value) >= kLargestInFull) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, digits);
}

// The cells of the last column, the title first: the top key of each head and its weight, such as
// "[SEP] 0.70", padded to equal width.
std::vector<std::string> top_keys(const Stats& stats) {
  constexpr std::size_t kLongestToken = 16;
  std::vector<std::string> cells{"top key"};
  for (const HeadReport& head : stats.heads) {
    const HeadStatistics& numbers = head.statistics;
    const std::string* token = top_token(stats.file, numbers);
    std::string name = fmt::format("key {}", numbers.top_key);
    if (token != nullptr && !token->empty()) {
      name = qkv::app::quoted(*token, kLongestToken);
      name = name.substr(1, name.size() - 2);  // a column needs no quotes
    }
    cells.push_back(numbers.top_key < 0 ? "none"
                                        : fmt::format("{} {}", name, shown(numbers.top_weight, 2)));
  }
  int widest = 0;
  for (const std::string& cell : cells) widest = std::max(widest, qkv::app::display_width(cell));
  for (std::string& cell : cells) {
    const int blanks = widest - qkv::app::display_width(cell);
    cell.insert(0, static_cast<std::size_t>(blanks), ' ');
  }
  return cells;
}

// The line "3 padding rows left out of each head", or "" if there are none.
std::string padding_line(const Stats& stats) {
  const auto rows = [](const HeadReport& head) { return head.statistics.padding_rows; };
  const auto [least, most] = std::ranges::minmax(stats.heads | std::views::transform(rows));
  if (most == 0) return {};
  const std::string count =
      least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  return fmt::format("{} padding row{} left out of each head\n", count, count == "1" ? "" : "s");
}

// The table of all heads, one line for each.
std::string table(const Stats& stats) {
  const std::vector<std::string> top = top_keys(stats);
  auto cell = top.begin();
  std::string text;
  for (const AxisColumn& axis : kAxisColumns) {
    if (has_axis(stats.file, axis.axis)) text += fmt::format("{:>7}  ", axis.name);
  }
  for (const Column& column : kColumns) text += fmt::format("{:>9}  ", column.title);
  text += *cell++ + "\n";
  for (const HeadReport& head : stats.heads) {
    std::string line;
    for (const AxisColumn& axis : kAxisColumns) {
      if (has_axis(stats.file, axis.axis)) {
        line += fmt::format("{:>7}  ", head.statistics.*axis.member);
      }
    }
    for (const Column& column : kColumns) {
      line += fmt::format("{:>9}  ", shown(column.value(head.statistics), column.digits));
    }
    text += line + *cell++ + "\n";
  }
  return text;
}

// The table for a terminal that is too narrow for table(). The columns are in bands, in which each
// row begins with the indices of the head, such as "0/2/5" below the title "example/layer/head".
std::string table_in_bands(const Stats& stats, int columns) {
  std::vector<std::string> places(stats.heads.size());
  std::vector<qkv::app::picture::Column> cells;
  std::string axes;
  for (const AxisColumn& axis : kAxisColumns) {
    if (!has_axis(stats.file, axis.axis)) continue;
    const char* const between = axes.empty() ? "" : "/";
    axes += fmt::format("{}{}", between, axis.name);
    for (std::size_t n = 0; n < places.size(); ++n) {
      places[n] += fmt::format("{}{}", between, stats.heads[n].statistics.*axis.member);
    }
  }
  for (const Column& column : kColumns) {
    qkv::app::picture::Column to{.head = std::string(column.title)};
    for (const HeadReport& head : stats.heads) {
      to.cells.push_back(shown(column.value(head.statistics), column.digits));
    }
    cells.push_back(std::move(to));
  }
  const std::vector<std::string> top = top_keys(stats);
  cells.push_back({.head = top[0], .cells = {top.begin() + 1, top.end()}});
  return (axes.empty() ? "" : axes + "\n") + in_bands(places, cells, columns);
}

std::string fitted_table(const Stats& stats, int columns) {
  std::string text = table(stats);
  const int width = qkv::app::display_width(text.substr(0, text.find('\n')));
  return columns == 0 || width <= columns ? text : table_in_bands(stats, columns);
}

std::vector<std::string> warning_lines(const Stats& stats) {
  constexpr int kMostOfAFault = 8;
  return fault_lines(stats.file, stats.heads, kMostOfAFault, "--json");
}

std::string warning_text(const Stats& stats) {
  std::string text;
  for (const std::string& line : warning_lines(stats)) text += "warning: " + line + "\n";
  return text.empty() ? "no warnings\n" : text;
}

// The report as text, whose table fits the terminal's `columns`; 0 is any width.
std::string report(const Stats& stats, const StatsOptions& options, int columns = 0) {
  const qkv::Dims& shape = stats.file.attn.shape();
  return fmt::format("{}: {} {} as {}; ln Tk = {:.4f}\n\n{}{}\n{}", shown_name(options.input.spec),
                     qkv::name_of(stats.file.attn.dtype()),
                     qkv::to_string(stats.file.attn_memory.shape()), axes_of(stats.file),
                     std::log(static_cast<double>(shape[4])), fitted_table(stats, columns),
                     padding_line(stats), warning_text(stats));
}

Json place_json(const AttentionFile& file, const HeadStatistics& head) {
  Json json = Json::object();
  for (const AxisColumn& axis : kAxisColumns) {
    if (has_axis(file, axis.axis)) json[std::string(axis.name)] = head.*axis.member;
  }
  return json;
}

Json json_of(const Stats& stats, const StatsOptions& options) {
  Json heads = Json::array();
  Json warnings = Json::array();
  for (const HeadReport& head : stats.heads) {
    Json one = place_json(stats.file, head.statistics);
    for (const Column& column : kColumns) {
      const double value = column.value(head.statistics);
      if (column.digits == 0) {
        one[std::string(column.name)] = static_cast<Index>(value);
      } else {
        one[std::string(column.name)] = json_number(value);
      }
    }
    one["negative_rows"] = head.statistics.negative_rows;
    one["rows"] = head.statistics.rows;
    one["padding_rows"] = head.statistics.padding_rows;
    const bool any = head.statistics.top_key >= 0;
    const std::string* token = top_token(stats.file, head.statistics);
    one["top_key"] = any ? Json(head.statistics.top_key) : Json();
    one["top_key_token"] = token != nullptr ? Json(*token) : Json();
    one["top_key_weight"] = json_number(head.statistics.top_weight);
    heads.push_back(one);
    for (const Warning& warning : head.warnings) {
      Json line = place_json(stats.file, head.statistics);
      line["fault"] = name_of(warning.fault);
      line["text"] = warning.text;
      warnings.push_back(line);
    }
  }
  Json json;
  json["file"] = options.input.name();
  json["axes"] = axes_of(stats.file);
  json["shape"] = std::vector<Index>(stats.file.attn_memory.shape().begin(),
                                     stats.file.attn_memory.shape().end());
  json["dtype"] = qkv::name_of(stats.file.attn.dtype());
  json["heads"] = heads;
  json["warnings"] = warnings;
  return json;
}

// Arrays [N,L,H] of the heads' numbers for files, and the memory that the views point into.
struct Arrays {
  std::vector<qkv::app::NamedView> views{};
  std::deque<qkv::Tensor> tensors{};  // a deque: addresses stay valid
  qkv::app::Strings tokens{};         // the tokens of the top keys
};

template <class T, class Value>
void add_array(const Stats& stats, std::string_view name, const Value& value, Arrays& arrays) {
  qkv::Tensor& tensor = arrays.tensors.emplace_back(qkv::dtype_of<T>, stats.shape);
  std::size_t n = 0;
  for (T& element : tensor.values<T>()) element = value(stats.heads[n++].statistics);
  arrays.views.push_back({std::string(name), tensor.view()});
}

void fill_arrays(const Stats& stats, Arrays& arrays) {
  for (const Column& column : kColumns) {
    add_array<double>(stats, column.name, column.value, arrays);
  }
  const auto count = [&](std::string_view name, Index HeadStatistics::*member) {
    add_array<Index>(
        stats, name, [member](const auto& head) { return head.*member; }, arrays);
  };
  count("rows", &HeadStatistics::rows);
  count("padding_rows", &HeadStatistics::padding_rows);
  count("top_key", &HeadStatistics::top_key);
  add_array<double>(
      stats, "top_key_weight", [](const auto& head) { return head.top_weight; }, arrays);
  if (stats.file.src.empty()) return;
  arrays.tokens.shape = stats.shape;
  for (const HeadReport& head : stats.heads) {
    const std::string* token = top_token(stats.file, head.statistics);
    arrays.tokens.values.push_back(token != nullptr ? *token : "");
  }
  arrays.views.push_back({"top_key_token", &arrays.tokens});
}

// Reads the file and computes the reports of the selected heads.
void read_stats(const StatsOptions& options, Stats& stats) {
  stats.file = read(options.input);
  check_example(stats.file, options.choice);
  const Index first = std::max<Index>(0, options.choice.example);
  const Index end = options.choice.example < 0 ? stats.file.attn.size(0) : first + 1;
  const auto layers = resolve(options.choice.layers, "--layers", "layers", stats.file.attn.size(1));
  const auto heads = resolve(options.choice.heads, "--heads", "heads", stats.file.attn.size(2));
  stats.shape = {end - first, std::ssize(layers), std::ssize(heads)};
  for (Index example = first; example < end; ++example) {
    for (const Index layer : layers) {
      for (const Index head : heads) {
        stats.heads.push_back(qkv::app::head_report(stats.file, example, layer, head));
      }
    }
  }
}

void run(const StatsOptions& options, const Common& common) {
  Stats stats;
  Arrays arrays;
  Results results;
  results.text = [&] { return report(stats, options); };
  results.screen = [&] { return report(stats, options, table_columns()); };
  results.json = [&] { return json_of(stats, options); };
  results.brief = [] { return std::string(); };  // the files are the result
  results.arrays = [&] {
    if (arrays.views.empty()) fill_arrays(stats, arrays);
    return arrays.views;
  };
  check_outputs(options.outputs, results);
  check_inputs(options.outputs, {split_spec(options.input.spec).file});
  read_stats(options, stats);
  if (!options.outputs.paths.empty() && !options.outputs.json) {
    for (const std::string& line : warning_lines(stats)) {
      warn(common, fmt::format("{}: {}", options.input.name(), line));
    }
  }
  write_outputs(options.outputs, results);
}

}  // namespace

void add_stats(const Command& program, const Common& common) {
  const Command command = program.add_command(
      "stats", "describe attention heads in numbers, and warn of common faults");
  const auto options = std::make_shared<StatsOptions>();
  add_attention_input(command, options->input);
  add_head_choice(command, options->choice, "all");
  add_outputs(command, options->outputs, "txt", {.arrays = true});
  command.footer(kStatsFooter);
  command.callback([options, &common] { run(*options, common); });
}
