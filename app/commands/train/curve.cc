// SPDX-License-Identifier: Apache-2.0
// `qkv curve`: the losses and BLEU of runs over their training.
#include "commands/train/curve.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>

#include "commands/shell/outputs.h"
#include "commands/shell/terminal.h"
#include "commands/train/commands.h"

namespace {

constexpr const char* kCurveFooter = R"(Examples:
  qkv curve RUN
  qkv curve RUN -o curve.svg
  qkv curve RUN KEPT --x time -o curve.svg -o curve.png

Draws the learning curves in the train.jsonl of runs, finished or still training: training and
validation loss per target token, and BLEU. The ring marks the best validation; one that only the
end of a budget added does not count once the run is resumed. Training loss, unlike validation
loss, includes dropout and label smoothing; a loss averaged over far fewer updates than its
neighbours is merged into the next point. -o curve.txt and --json have the numbers.)";

struct CurveOptions {
  std::vector<std::string> runs{};
  CurveAxis axis = CurveAxis::kUpdates;
  OutputOptions outputs{};
};

using qkv::app::InputError;
using qkv::app::kMostDrawn;

// Checks that a picture can show each point on every horizontal axis.
void check_places(const Curve& curve) {
  qkv::Index line = 0;
  for (const auto& point : curve.points) {
    ++line;
    const std::pair<const char*, double> places[] = {{"epoch", point.epochs.value_or(0)},
                                                     {"update", static_cast<double>(point.update)},
                                                     {"seconds", point.seconds}};
    for (const auto& [name, value] : places) {
      if (value < kMostDrawn) continue;
      throw InputError::at_line(
          qkv::app::training_log_of(curve.run), line,
          fmt::format("{}: expected a number below {:g}, got {:g}", name, kMostDrawn, value));
    }
  }
}

// Checks that a run has a value to draw; a run without one is an error even if others have some.
void check_values(const Curve& curve) {
  // The first value too large to draw, with its line.
  std::optional<std::pair<qkv::Index, double>> hidden;
  qkv::Index line = 0;
  for (const auto& point : curve.points) {
    ++line;
    for (const auto& value : {point.loss, point.valid_loss, point.bleu}) {
      if (!value || !std::isfinite(*value)) continue;
      if (std::abs(*value) < kMostDrawn) return;
      if (!hidden) hidden = {line, *value};
    }
  }
  if (!hidden) throw InputError(curve.run, "expected a loss or BLEU that is finite, got none");
  throw InputError::at_line(
      qkv::app::training_log_of(curve.run), hidden->first,
      fmt::format("expected a loss or BLEU between -{0:g} and {0:g}, got {1:g}", kMostDrawn,
                  hidden->second));
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
    check_inputs(options.outputs, {qkv::app::training_log_of(name)});
  }
  for (const std::string& name : options.runs) {
    curves.push_back({name, qkv::app::read_training_curve(name)});
    check_places(curves.back());
    check_values(curves.back());
  }
  write_outputs(options.outputs, results);
}

}  // namespace

void add_curve(const Command& program, const Common& common) {
  const Command command = program.add_command("curve", "draw the learning curves of translators");
  const auto options = std::make_shared<CurveOptions>();
  command.add_option("RUN", options->runs, "one or more folders that qkv train wrote")
      .required()
      .any_number()
      .type_name("");
  add_choice(command, "--x", options->axis, kCurveAxes,
             "what the horizontal axis counts (default updates)");
  add_outputs(command, options->outputs, "svg", {.picture = true});
  command.footer(kCurveFooter);
  command.callback([options, &common] { run(*options, common); });
}
