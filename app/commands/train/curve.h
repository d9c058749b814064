// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_CURVE_H_
#define QKV_COMMANDS_TRAIN_CURVE_H_

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "commands/shell/options.h"
#include "picture/chart.h"
#include "translator/training/training_curve.h"

// `qkv curve`: the forms of its result.

enum class CurveAxis { kUpdates, kEpochs, kTime };
inline constexpr Choice<CurveAxis> kCurveAxes[] = {
    {"updates", CurveAxis::kUpdates}, {"epochs", CurveAxis::kEpochs}, {"time", CurveAxis::kTime}};

struct Curve {
  std::string run{};  // as it was named
  std::vector<qkv::app::CurvePoint> points{};
};

// Throws UsageError for epochs of a run that has completed none.
qkv::app::Chart chart_of(const std::vector<Curve>& curves, CurveAxis axis);
// A table for each run.
std::string text_of(const std::vector<Curve>& curves);
nlohmann::ordered_json json_of(const std::vector<Curve>& curves);

#endif  // QKV_COMMANDS_TRAIN_CURVE_H_
