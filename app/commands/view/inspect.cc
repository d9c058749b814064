// SPDX-License-Identifier: Apache-2.0
// The command `qkv inspect`, which tells what a file is and whether it is intact.
#include "commands/view/inspect.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/shell/options.h"
#include "commands/view/attention_input.h"
#include "commands/view/commands.h"
#include "files/file_kind.h"

namespace {

using qkv::app::FileKind;

constexpr const char* kInspectFooter = R"(Examples:
  qkv inspect a.npz glove.6B.50d.txt
  qkv inspect --as vectors words.txt

Files are identified by their first bytes, not their names, then read and checked completely. Of
arrays the report has names, types, shapes, bytes, smallest, largest and mean number, counts of NaN
and infinity, and how they are read as an attention file (a single array is one if its rows look
like weights). Of word vectors and tables of numbers every line is read.

For a file that is malformed, or of another kind, one line on standard error says where and what was
expected. The other files are still inspected, and the exit code is 3.)";

constexpr Choice<FileKind> kKinds[] = {{"npy", FileKind::kNpy},
                                       {"npz", FileKind::kNpz},
                                       {"safetensors", FileKind::kSafetensors},
                                       {"vectors", FileKind::kWordVectors},
                                       {"columns", FileKind::kColumns},
                                       {"text", FileKind::kText},
                                       {"numbers", FileKind::kNumbers}};

struct InspectOptions {
  std::vector<std::string> paths{};
  std::optional<FileKind> kind{};
  qkv::app::AttentionFileOptions attention{};
  bool json = false;
};

Inspection inspect(const std::string& path, const InspectOptions& options) {
  const FileKind kind = options.kind ? *options.kind : qkv::app::file_kind(path, &stop_flag());
  switch (kind) {
    case FileKind::kNpy:
    case FileKind::kNpz:
    case FileKind::kSafetensors:
      return inspect_arrays(path, kKinds[static_cast<std::size_t>(kind)].name, options.attention);
    case FileKind::kWordVectors:
      return inspect_vectors(path);
    case FileKind::kColumns:
      return inspect_columns(path);
    case FileKind::kNumbers:
      return inspect_numbers(path);
    case FileKind::kText:
      break;
  }
  return inspect_text(path);
}

void run(const InspectOptions& options) {
  if (std::ranges::count(options.paths, "-") > 1) {
    throw UsageError("- is given twice, but standard input is read once");
  }
  for (const std::string& path : options.paths) {
    if (path == "-" && !options.kind) {
      throw UsageError(
          fmt::format("- needs --as {}: standard input is read once", names_of(kKinds, "|")));
    }
  }
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  std::optional<qkv::app::InputError> wrong;
  for (const std::string& path : options.paths) {
    try {
      Inspection result = inspect(path, options);
      nlohmann::ordered_json json;
      json["file"] = input_name(path);
      json.update(result.json);
      files.push_back(std::move(json));
      if (!options.json) print(result.text);
    } catch (const qkv::app::InputError& error) {
      if (wrong) complain(wrong->what());
      wrong = error;
    }
  }
  if (options.json && !files.empty()) print(json_text({{"files", files}}));
  if (wrong) throw qkv::app::InputError(*wrong);
}

}  // namespace

void add_inspect(const Command& program, const Common&) {
  const Command command =
      program.add_command("inspect", "show what a file contains, and whether it is intact");
  const auto options = std::make_shared<InspectOptions>();
  command.add_option("PATH", options->paths, "files; - reads standard input (with --as)")
      .type_name("")
      .required();
  command
      .add_parsed(
          "--as",
          [options](const std::string& text) { options->kind = chosen("--as", text, kKinds); },
          "read it as this, whatever its first bytes say")
      .type_name(names_of(kKinds, "|"));
  add_order(command, options->attention);
  command.add_flag("--json", options->json, "the report as JSON");
  command.footer(kInspectFooter);
  command.callback([options] { run(*options); });
}
