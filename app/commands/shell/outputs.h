// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_OUTPUTS_H_
#define QKV_COMMANDS_SHELL_OUTPUTS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/array_file.h>
#include <qkv/app/picture.h>

#include "commands/shell/command.h"
#include "commands/shell/console.h"
#include "commands/shell/picture_bytes.h"

// Where a command's results go: standard output, and files whose extensions select the format.

// The results in the forms that the formats need, each built only on demand. An empty form is one
// the command does not support.
struct Results {
  std::function<std::vector<qkv::app::NamedView>()> arrays{};  // .npz .safetensors
  std::function<qkv::app::ArrayView()> array{};                // .npy: the one that matters
  std::function<Figure()> picture{};                           // .svg .png .pdf
  std::function<std::string()> text{};                         // .txt, and standard output
  std::function<std::string()> screen{};           // standard output, if different from the text
  std::function<std::string()> brief{};            // replaces it when files are written
  std::function<nlohmann::ordered_json()> json{};  // .json, --json
};

struct OutputOptions {
  std::vector<std::string> paths{};  // in the order of the command line; "-" is standard output
  std::string format{};              // of "-": an extension without its dot; "": the usual one
  std::string usual{};               // the default format of "-"
  bool json = false;                 // the report on standard output as JSON
};

// -o FILE (repeatable), --format and --json. `usual` is the format of "-": "npz".
void add_outputs(const Command& command, OutputOptions& options, const std::string& usual);

// Called before anything is read or computed. Throws UsageError for an unknown extension or a form
// the command does not support, for a file named twice and for "-" together with --json,
// NotAvailable for one that this machine cannot draw, and OutputError for a path that cannot be
// written. The functions of `results` are not called yet, they only have to be set.
void check_outputs(const OutputOptions& options, const Results& results);

// Called before anything is computed. Throws UsageError if an output is one of the files that the
// command reads ("": none).
void check_inputs(const OutputOptions& options, const std::vector<std::string>& inputs);

// Whether an output has this format: "npy".
bool wants(const OutputOptions& options, std::string_view format);

// All files are written before the first is renamed into place: if one fails, none appears. Then
// standard output (a reader that closes the pipe early must not cost the files): "-" if it was
// named, else the report as JSON or text (the brief one when files are written).
void write_outputs(const OutputOptions& options, const Results& results, const Common& common);

// The extensions of files that this build writes, ".npz, .npy, .svg"; those that hold arrays.
std::string output_formats();
std::string array_formats();

#endif  // QKV_COMMANDS_SHELL_OUTPUTS_H_
