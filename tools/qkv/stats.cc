// SPDX-License-Identifier: Apache-2.0
// `qkv stats`: what the heads of an attention file do, and what looks wrong.
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/attention_stats.h>

#include "attention_input.h"
#include "commands.h"
#include "console.h"
#include "json_values.h"
#include "outputs.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::AttentionFile;
using qkv::app::HeadReport;
using qkv::app::HeadStatistics;
using qkv::app::LeadingAxis;
using qkv::app::Warning;

constexpr const char* kFooter = R"(Examples:
  qkv stats a.npz
  qkv stats a.npz --json -o stats.npz

One line for each head, means over its rows that hold a weight: entropy -sum w ln w in nats (0: one
key, ln Tk: all alike), distance sum w |i - j|, first key: the weight of key 0. Counted are rows that
do not sum to 1 (within 1e-4, for two-byte numbers 1e-2), rows of zeros, rows with NaN or infinity.

Warnings follow, about heads that look like the usual faults: NaN, negative weights, rows that do not
sum to 1, a transposed map, weight on masked pairs or on padding ([PAD], <pad>), one key that has
nearly everything, rows that look one place beside themselves, a causal map that sees the next key,
rows that attend to everything alike. Real heads may do some of this; a look tells (qkv view).)";

struct StatsOptions {
  AttentionInput input{};
  OutputOptions outputs{};
};

struct Stats {
  AttentionFile file{};
  std::vector<HeadReport> heads{};
};

// A column of the table, a member of the JSON, an array [N,L,H] of the files.
struct Column {
  std::string_view name;   // of members and arrays
  std::string_view title;  // of the table
  double (*value)(const HeadStatistics& head);
  int digits;
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

std::string table(const Stats& stats) {
  std::string text;
  for (const AxisColumn& axis : kAxisColumns) {
    if (has_axis(stats.file, axis.axis)) text += fmt::format("{:>7}  ", axis.name);
  }
  for (const Column& column : kColumns) text += fmt::format("{:>9}  ", column.title);
  text.resize(text.find_last_not_of(' ') + 1);
  text += "\n";
  for (const HeadReport& head : stats.heads) {
    std::string line;
    for (const AxisColumn& axis : kAxisColumns) {
      if (has_axis(stats.file, axis.axis)) {
        line += fmt::format("{:>7}  ", head.statistics.*axis.member);
      }
    }
    for (const Column& column : kColumns) {
      line += fmt::format("{:>9.{}f}  ", column.value(head.statistics), column.digits);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Of each fault the first heads; a file of a whole model would say the same a hundred times.
std::string warning_lines(const Stats& stats) {
  constexpr int kMostOfAFault = 8;
  std::map<qkv::app::Fault, int> counts;
  std::string text;
  for (const HeadReport& head : stats.heads) {
    const std::string place = place_of(stats.file, head.statistics);
    for (const Warning& warning : head.warnings) {
      if (++counts[warning.fault] > kMostOfAFault) continue;
      text += fmt::format("warning: {}{}{}\n", place, place.empty() ? "" : ": ", warning.text);
    }
  }
  for (const auto& [fault, count] : counts) {
    if (count <= kMostOfAFault) continue;
    text += fmt::format("warning: and {} more heads like this: {} (--json lists all)\n",
                        count - kMostOfAFault, name_of(fault));
  }
  return text.empty() ? "no warnings\n" : text;
}

std::string report(const Stats& stats, const StatsOptions& options) {
  const qkv::Dims& shape = stats.file.attn.shape();
  return fmt::format("{}: {} {} as {}; ln Tk = {:.4f}\n\n{}\n{}", options.input.name(),
                     qkv::name_of(stats.file.attn.dtype()),
                     qkv::to_string(stats.file.attn_memory.shape()), axes_of(stats.file),
                     std::log(static_cast<double>(shape[4])), table(stats), warning_lines(stats));
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

// A tensor [N,L,H] for each column.
std::vector<qkv::Tensor> columns_of(const Stats& stats) {
  std::vector<qkv::Tensor> tensors;
  for (const Column& column : kColumns) {
    qkv::Tensor tensor(qkv::DType::kFloat64,
                       {stats.file.attn.size(0), stats.file.attn.size(1), stats.file.attn.size(2)});
    std::size_t n = 0;
    for (double& value : tensor.values<double>()) value = column.value(stats.heads[n++].statistics);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void run(const StatsOptions& options, const Common& common) {
  Stats stats;
  std::vector<qkv::Tensor> columns;
  Results results;
  results.text = [&] { return report(stats, options); };
  results.json = [&] { return json_of(stats, options); };
  results.arrays = [&] {
    columns = columns_of(stats);
    std::vector<qkv::app::NamedView> arrays;
    for (std::size_t n = 0; n < columns.size(); ++n) {
      arrays.push_back({std::string(kColumns[n].name), columns[n].view()});
    }
    return arrays;
  };
  check_outputs(options.outputs, results);
  stats.file = read(options.input);
  stats.heads = qkv::app::attention_statistics(stats.file);
  write_outputs(options.outputs, results, common);
}

}  // namespace

void add_stats(CLI::App& program, const Common& common) {
  CLI::App& command = *program.add_subcommand(
      "stats", "what the heads of an attention file do, and what looks wrong");
  const auto options = std::make_shared<StatsOptions>();
  add_attention_input(command, options->input);
  add_outputs(command, options->outputs, "txt");
  command.footer(kFooter);
  command.callback([options, &common] { run(*options, common); });
}
