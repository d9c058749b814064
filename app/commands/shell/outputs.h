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
#include "commands/shell/picture_bytes.h"

// Writing a command's results to standard output, and to files whose extensions select the format.

// One of several pictures, with the number that its file gets: -o x.svg writes x-2.svg.
struct NumberedFigure {
  qkv::Index number = 0;
  Figure figure{};
};

// Functions that return a command's results in the forms that the formats need. A function is
// called only if its form is written, and not set if the command does not support the form.
struct Results {
  std::function<std::vector<qkv::app::NamedView>()> arrays{};  // .npz .safetensors
  std::function<qkv::app::ArrayView()> array{};                // .npy: the main array
  std::function<Figure()> picture{};                           // .svg .png .pdf
  std::function<std::string()> page{};                         // .html
  // Several pictures, each for a file of its own. If this is not set or returns none, `picture` is
  // written.
  std::function<std::vector<NumberedFigure>()> pictures{};
  std::function<std::string()> text{};             // .txt, and standard output
  std::function<std::string()> screen{};           // standard output, if different from the text
  std::function<std::string()> brief{};            // replaces the screen when files are written
  std::function<nlohmann::ordered_json()> json{};  // .json, --json
};

// The forms in which a command can write its results, besides text and JSON, which all commands
// have.
struct Forms {
  bool arrays = false;   // .npz .safetensors
  bool array = false;    // .npy
  bool picture = false;  // .svg .png .pdf
  bool page = false;     // .html
};

struct OutputOptions {
  std::vector<std::string> paths{};  // in the order of the command line; "-" is standard output
  std::string format{};              // the format of "-", such as "npz"; "": the usual one
  std::string usual{};               // the default format of "-"
  bool json = false;                 // whether to print the report as JSON
};

// Adds -o FILE (repeatable), --format, which lists the formats of `forms`, and --json. `usual` is
// the default of --format, such as "npz".
void add_outputs(const Command& command, OutputOptions& options, const std::string& usual,
                 const Forms& forms);

// Checks the outputs; to be called before anything is read or computed. Throws UsageError for an
// unknown extension or a form that the command does not support, for a file named twice and for "-"
// together with --json, NotAvailable for a picture that this machine cannot draw, and OutputError
// for a path that cannot be written. The functions of `results` are not called here.
void check_outputs(const OutputOptions& options, const Results& results);

// Throws UsageError if an output is one of the files that the command reads; to be called before
// anything is computed. An input of "" stands for none.
void check_inputs(const OutputOptions& options, const std::vector<std::string>& inputs);

// Whether an output has this format, such as "npy".
bool wants(const OutputOptions& options, std::string_view format);
// Whether an output other than standard output is a picture.
bool wants_picture_file(const OutputOptions& options);

// Throws UsageError if, for an output that is a picture, the file of picture `number` exists
// already or is another output: no file is replaced that the command line does not name.
void check_numbered(const OutputOptions& options, qkv::Index number);

// Writes all outputs. All files are written before the first is renamed into place, so that if
// writing one fails, none appears. Standard output comes last, so that a reader that closes the
// pipe early does not cost the files: it gets the output "-" if there is one, else the report as
// JSON or text.
void write_outputs(const OutputOptions& options, const Results& results);

// The extensions of the files that this build writes, such as ".npz, .npy, .svg".
std::string output_formats();
// The extensions among output_formats() whose files hold arrays.
std::string array_formats();

#endif  // QKV_COMMANDS_SHELL_OUTPUTS_H_
