// SPDX-License-Identifier: Apache-2.0
#include "commands/about/info.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/utf8.h>

#include "commands/about/commands.h"
#include "commands/shell/outputs.h"

namespace {

constexpr const char* kInfoFooter = R"(Examples:
  qkv info
  qkv info --paths --json

"CPU targets" are the instruction sets that this build and this machine support, best first, then
"reference", the plain loops. QKV_TARGET in the environment selects the "CPU target"; without it,
that is the first. "GPU 0" and so on are CUDA devices; "GPU" says why there are none.
--paths lists which implementation runs each score, dtype and family of options:
"reference" is the plain loops that define the semantics.)";

struct InfoOptions {
  bool paths = false;
  OutputOptions outputs{};
};

std::string facts_text(const Facts& facts) {
  std::size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : facts)
    text += fmt::format("{:<{}}  {}\n", name, width, qkv::app::on_one_line(value));
  return text;
}

// The path of both passes, such as "dot/avx2", or the two paths if the passes have different ones:
// "dot/avx2 / reference".
std::string shown(const PathFact& fact) {
  return fact.forward == fact.backward ? fact.forward : fact.forward + " / " + fact.backward;
}

// A table with a row for each score and family of options and a column for each dtype. The facts
// must be in the order of path_facts().
std::string paths_text(const std::vector<PathFact>& facts) {
  std::vector<std::string> dtypes;
  std::size_t width = 0;
  for (const PathFact& fact : facts) {
    if (std::ranges::find(dtypes, fact.dtype) == dtypes.end()) dtypes.push_back(fact.dtype);
    width = std::max({width, shown(fact).size(), fact.dtype.size()});
  }
  std::string text = fmt::format("{:<12}{:<15}", "score", "options");
  for (const std::string& dtype : dtypes) text += fmt::format("{:<{}}", dtype, width + 2);
  text.erase(text.find_last_not_of(' ') + 1);
  for (std::size_t n = 0; n < facts.size(); ++n) {
    if (n % dtypes.size() == 0) {
      text.erase(text.find_last_not_of(' ') + 1);
      text += fmt::format("\n{:<12}{:<15}", facts[n].score, facts[n].options);
    }
    text += fmt::format("{:<{}}", shown(facts[n]), width + 2);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\nEach cell is the implementation, or forward / backward where these differ.\n";
}

std::string report(const InfoOptions& options) {
  const std::string text = facts_text(build_facts()) + "\n" + facts_text(machine_facts());
  return options.paths ? text + "\n" + paths_text(path_facts()) : text;
}

nlohmann::ordered_json facts_json(const Facts& facts) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : facts) json[name] = value;
  return json;
}

nlohmann::ordered_json report_json(const InfoOptions& options) {
  nlohmann::ordered_json json;
  json["build"] = facts_json(build_facts());
  json["machine"] = facts_json(machine_facts());
  if (!options.paths) return json;
  json["paths"] = nlohmann::ordered_json::array();
  for (const PathFact& fact : path_facts()) {
    nlohmann::ordered_json path;
    path["score"] = fact.score;
    path["options"] = fact.options;
    path["dtype"] = fact.dtype;
    path["forward"] = fact.forward;
    path["backward"] = fact.backward;
    json["paths"].push_back(std::move(path));
  }
  return json;
}

void run(const InfoOptions& options) {
  Results forms;
  forms.text = [&] { return report(options); };
  forms.json = [&] { return report_json(options); };
  check_outputs(options.outputs, forms);
  write_outputs(options.outputs, forms);
}

}  // namespace

void add_info(const Command& program, const Common&) {
  const Command command = program.add_command("info", "describe this build and this machine");
  const auto options = std::make_shared<InfoOptions>();
  command.add_flag("--paths", options->paths, "which path runs which call");
  add_outputs(command, options->outputs, "txt", {});
  command.footer(kInfoFooter);
  command.callback([options] { run(*options); });
}
