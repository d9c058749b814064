// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_CURVE_H_
#define QKV_COMMANDS_TRAIN_CURVE_H_

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "commands/shell/options.h"
#include "picture/chart.h"
#include "translator/training/training_curve.h"

// The results of `qkv curve` in its output forms.

enum class CurveAxis { kUpdates, kEpochs, kTime };
inline constexpr Choice<CurveAxis> kCurveAxes[] = {
    {"updates", CurveAxis::kUpdates}, {"epochs", CurveAxis::kEpochs}, {"time", CurveAxis::kTime}};

// The learning curve of one run.
struct Curve {
  std::string run{};  // the run as the user named it
  std::vector<qkv::app::CurvePoint> points{};
};

// A chart of all curves. Throws UsageError for an axis of epochs if a run has completed none.
qkv::app::Chart chart_of(const std::vector<Curve>& curves, CurveAxis axis);
// A text with one table for each run.
std::string text_of(const std::vector<Curve>& curves);
nlohmann::ordered_json json_of(const std::vector<Curve>& curves);

#endif  // QKV_COMMANDS_TRAIN_CURVE_H_
