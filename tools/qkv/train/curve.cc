// SPDX-License-Identifier: Apache-2.0
// `qkv curve`: how the losses and BLEU of runs went.
#include "train/curve.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>

#include "shell/outputs.h"
#include "shell/terminal.h"
#include "train/commands.h"

namespace {

constexpr const char* kCurveFooter = R"(Examples:
  qkv curve RUN
  qkv curve RUN -o curve.svg
  qkv curve RUN KEPT --x time -o curve.svg -o curve.png

Draws the train.jsonl of runs, also of those that still train: the loss of training and of
validations per target token, and their BLEU. The ring is the best validation. The loss of
training, unlike that of validations, has dropout and label smoothing in it. -o curve.txt and --json
have the numbers.)";

struct CurveOptions {
  std::vector<std::string> runs{};
  CurveAxis axis = CurveAxis::kUpdates;
  OutputOptions outputs{};
};

// A run without anything to draw is a mistake even among others.
void check_finite(const Curve& curve) {
  const auto is_finite = [](const std::optional<double>& value) {
    return value && std::isfinite(*value);
  };
  for (const auto& point : curve.points) {
    if (is_finite(point.loss) || is_finite(point.valid_loss) || is_finite(point.bleu)) return;
  }
  throw qkv::app::InputError(curve.run, "expected a loss or BLEU that is finite, got none");
}

void run(const CurveOptions& options, const Common& common) {
  std::vector<Curve> curves;
  Results results;
  results.picture = [&] { return chart_of(curves, options.axis); };
  results.text = [&] { return text_of(curves); };
  results.screen = [&] {
    return draw_terminal(chart_of(curves, options.axis), terminal_style(common));
  };
  results.brief = [] { return std::string(); };  // the files are the result
  results.json = [&] { return json_of(curves); };
  check_outputs(options.outputs, results);
  for (const std::string& name : options.runs) {
    curves.push_back({name, qkv::app::read_training_curve(name)});
    check_finite(curves.back());
  }
  write_outputs(options.outputs, results, common);
}

}  // namespace

void add_curve(const Command& program, const Common& common) {
  const Command command = program.add_command("curve", "learning curves of translators");
  const auto options = std::make_shared<CurveOptions>();
  command.add_option("RUN", options->runs, "the folder that qkv train wrote, one or more of them")
      .required()
      .any_number()
      .type_name("");
  add_choice(command, "--x", options->axis, kCurveAxes,
             "what the horizontal axis counts (default updates)");
  add_outputs(command, options->outputs, "svg");
  command.footer(kCurveFooter);
  command.callback([options, &common] { run(*options, common); });
}
