// SPDX-License-Identifier: Apache-2.0
#include "attention_input.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "options.h"

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
      throw CLI::ValidationError("--order", fmt::format("unknown name {}; valid: {}",
                                                        qkv::app::quoted(name), names_of(kAxes)));
    }
    if (std::find(order.begin(), order.end(), axis->value) != order.end()) {
      throw CLI::ValidationError("--order", fmt::format("names {} twice", name));
    }
    order.push_back(axis->value);
  }
  if (order.empty()) throw CLI::ValidationError("--order", "expected names, got nothing");
  return order;
}

}  // namespace

void add_order(CLI::App& command, qkv::app::AttentionFileOptions& options) {
  command
      .add_option_function<std::string>(
          "--order", [&options](const std::string& text) { options.order = parse_order(text); },
          "what attn's axes before queries and keys are, in the file's order (default: the last of "
          "examples,layers,heads)")
      ->type_name("NAMES");
}

void add_attention_input(CLI::App& command, AttentionInput& input) {
  command
      .add_option("FILE", input.file,
                  "attention file (.npz, .safetensors, .npy); - reads standard input")
      ->type_name("")
      ->required();
  add_order(command, input.options);
}

qkv::app::AttentionFile read(const AttentionInput& input) {
  return qkv::app::read_attention_file(input.file, input.options);
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

std::string axes_of(const qkv::app::AttentionFile& file) {
  std::string text;
  for (const LeadingAxis axis : file.order) {
    text += fmt::format("{}, ", kAxes[static_cast<std::size_t>(axis)].name);
  }
  return text + "queries, keys";
}
