// SPDX-License-Identifier: Apache-2.0
#include "commands/view/attention_input.h"

#include <algorithm>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "commands/shell/array_store.h"
#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/options.h"

namespace {

using qkv::app::LeadingAxis;

constexpr Choice<LeadingAxis> kAxes[] = {{"examples", LeadingAxis::kExamples},
                                         {"layers", LeadingAxis::kLayers},
                                         {"heads", LeadingAxis::kHeads}};

std::vector<LeadingAxis> parse_order(const std::string& text) {
  std::vector<LeadingAxis> order;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto* axis = std::find_if(std::begin(kAxes), std::end(kAxes),
                                    [&](const auto& a) { return a.name == name; });
    if (axis == std::end(kAxes)) {
      throw BadValue("--order", fmt::format("unknown name {}; valid: {}", qkv::app::quoted(name),
                                            names_of(kAxes)));
    }
    if (std::find(order.begin(), order.end(), axis->value) != order.end()) {
      throw BadValue("--order", fmt::format("names {} twice", name));
    }
    order.push_back(axis->value);
  }
  if (order.empty()) throw BadValue("--order", "expected names, got nothing");
  return order;
}

}  // namespace

void add_head_choice(const Command& command, HeadChoice& choice, std::string_view examples) {
  add_number(command, "--example", choice.example, qkv::Index{0},
             fmt::format("which example (default {})", examples));
  add_indices(command, "--layers", choice.layers, "which layers, such as 0,2-3, or all");
  add_indices(command, "--heads", choice.heads, "which heads, such as 0,2-3, or all");
}

void check_example(const qkv::app::AttentionFile& file, const HeadChoice& choice) {
  const qkv::Index examples = file.attn.size(0);
  if (choice.example < examples) return;
  throw UsageError(
      examples == 1 ? fmt::format("--example {}: the only index of examples is 0", choice.example)
                    : fmt::format("--example {}: examples are 0-{}", choice.example, examples - 1));
}

void add_order(const Command& command, qkv::app::AttentionFileOptions& options) {
  command
      .add_parsed(
          "--order", [&options](const std::string& text) { options.order = parse_order(text); },
          "attn's axes before queries and keys, in the file's order (default: the last of "
          "examples,layers,heads)")
      .type_name("NAMES");
}

void add_attention_input(const Command& command, AttentionInput& input) {
  command
      .add_option(
          "FILE", input.spec,
          "attention file (.npz, .safetensors, .npy); FILE:NAME reads that array instead of "
          "attn; - is standard input")
      .type_name("")
      .required();
  add_order(command, input.options);
}

qkv::app::AttentionFile read(const AttentionInput& input) {
  const ArraySpec parts = split_spec(input.spec);
  qkv::app::AttentionFileOptions options = input.options;
  options.stop = &stop_flag();
  if (!parts.name.empty()) options.name = parts.name;
  return qkv::app::read_attention_file(parts.file, options);
}

bool has_axis(const qkv::app::AttentionFile& file, LeadingAxis axis) {
  return std::find(file.order.begin(), file.order.end(), axis) != file.order.end();
}

std::string place_of(const qkv::app::AttentionFile& file, const qkv::app::HeadStatistics& head) {
  std::string text;
  const auto add = [&](LeadingAxis axis, std::string_view name, qkv::Index index) {
    if (has_axis(file, axis)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, index);
  };
  add(LeadingAxis::kExamples, "example", head.example);
  add(LeadingAxis::kLayers, "layer", head.layer);
  add(LeadingAxis::kHeads, "head", head.head);
  return text;
}

std::vector<std::string> fault_lines(const qkv::app::AttentionFile& file,
                                     std::span<const qkv::app::HeadReport> heads, int most,
                                     std::string_view where) {
  std::map<qkv::app::Fault, int> counts;
  std::vector<std::string> lines;
  for (const qkv::app::HeadReport& head : heads) {
    const std::string place = place_of(file, head.statistics);
    for (const qkv::app::Warning& warning : head.warnings) {
      if (++counts[warning.fault] > most) continue;
      lines.push_back(fmt::format("{}{}{}", place, place.empty() ? "" : ": ", warning.text));
    }
  }
  for (const auto& [fault, count] : counts) {
    if (count <= most) continue;
    lines.push_back(fmt::format("and {} more head{} like this: {} ({} lists all)", count - most,
                                count - most == 1 ? "" : "s", qkv::app::name_of(fault), where));
  }
  return lines;
}

std::string axes_of(const qkv::app::AttentionFile& file) {
  std::string text;
  for (const LeadingAxis axis : file.order) {
    text += fmt::format("{}, ", kAxes[static_cast<std::size_t>(axis)].name);
  }
  return text + "queries, keys";
}
