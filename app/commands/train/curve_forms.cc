// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/shell/terminal.h"
#include "commands/train/curve.h"
#include "picture/columns.h"
#include "text/text.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::app::Chart;
using qkv::app::ChartPoint;
using qkv::app::ChartSeries;
using qkv::app::ChartStroke;
using qkv::app::CurvePoint;
using Number = std::optional<double> CurvePoint::*;

// A unit of time, chosen so that a long time is a small number.
struct TimeUnit {
  const char* name;
  double seconds;
};

TimeUnit unit_for(const std::vector<Curve>& curves) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  double most = 0;
  for (const Curve& curve : curves) most = std::max(most, curve.points.back().seconds);
  return most < 3 * kMinute ? TimeUnit{"seconds", 1}
         : most < 3 * kHour ? TimeUnit{"minutes", kMinute}
                            : TimeUnit{"hours", kHour};
}

// The horizontal axis: its name, and where it has a point.
class HorizontalAxis {
 public:
  HorizontalAxis(CurveAxis axis, const std::vector<Curve>& curves)
      : axis_(axis), unit_(unit_for(curves)) {
    if (axis != CurveAxis::kEpochs) return;
    for (const Curve& curve : curves) {
      if (curve.points.back().epochs) continue;
      throw UsageError(fmt::format("--x epochs: {} has no complete epoch yet; use --x updates",
                                   shown_name(curve.run)));
    }
  }

  double operator()(const CurvePoint& point) const {
    switch (axis_) {
      case CurveAxis::kUpdates:
        return static_cast<double>(point.update);
      case CurveAxis::kEpochs:
        return *point.epochs;
      case CurveAxis::kTime:
        break;
    }
    return point.seconds / unit_.seconds;
  }
  std::string name() const {
    switch (axis_) {
      case CurveAxis::kUpdates:
        return "updates";
      case CurveAxis::kEpochs:
        return "epochs";
      case CurveAxis::kTime:
        break;
    }
    return fmt::format("{} of training, with validations", unit_.name);
  }

 private:
  CurveAxis axis_;
  TimeUnit unit_;
};

// The point of the validation whose parameters are in best.safetensors; null if there is none.
const CurvePoint* best_of(const Curve& curve) {
  const CurvePoint* best = nullptr;
  for (const CurvePoint& point : curve.points) {
    if (point.is_best) best = &point;
  }
  return best;
}

std::string remark_of(const Curve& curve) {
  const CurvePoint* best = best_of(curve);
  if (best == nullptr) return "";
  std::string text = fmt::format("best at update {}:", best->update);
  if (best->bleu) text += fmt::format(" BLEU {:.2f},", *best->bleu);
  if (best->valid_loss) text += fmt::format(" loss {:.4f},", *best->valid_loss);
  text.pop_back();
  return text;
}

// The validations that do not count, as text: "update 310, 420"; empty if all count.
std::string uncounted(const Curve& curve) {
  constexpr std::size_t kMost = 8;
  std::vector<qkv::Index> updates;
  for (const CurvePoint& point : curve.points) {
    if (!point.counts) updates.push_back(point.update);
  }
  if (updates.empty()) return "";
  const std::size_t shown = std::min(kMost, updates.size());
  return fmt::format("update {}{}", fmt::join(std::span(updates).first(shown), ", "),
                     shown < updates.size() ? " and later ones" : "");
}

// The note on validations that do not count; empty if all count.
std::string note_on_uncounted(const std::vector<Curve>& curves) {
  std::string names;
  for (const Curve& curve : curves) {
    const std::string updates = uncounted(curve);
    if (updates.empty()) continue;
    if (!names.empty()) names += "; ";
    names += (curves.size() > 1 ? shown_name(curve.run) + ", " : std::string()) + updates;
  }
  if (names.empty()) return "";
  return fmt::format("Not counted for the best, since a run ended there and was resumed: {}.",
                     names);
}

// The points with a training loss, as they are drawn. Where an epoch ends just after a validation,
// the loss is that of few updates, which says little and would be a step in the curve. Such a point
// is merged into the next one, or the last point into the one before.
std::vector<CurvePoint> losses_drawn(const std::vector<CurvePoint>& all) {
  std::vector<CurvePoint> points;
  std::ranges::copy_if(all, std::back_inserter(points),
                       [](const CurvePoint& point) { return point.loss.has_value(); });
  std::vector<double> updates;
  for (std::size_t n = 0; n < points.size(); ++n) {
    const qkv::Index before = n == 0 ? 0 : points[n - 1].update;
    updates.push_back(static_cast<double>(points[n].update - before));
  }
  const auto is_drawable = [&](std::size_t n) {
    return std::abs(*points[n].loss) < qkv::app::kMostDrawn;  // false for NaN
  };
  const auto is_short_beside = [&](std::size_t n, std::size_t other) {
    constexpr double kPart = 0.25;
    return other >= points.size() ||
           (is_drawable(n) && is_drawable(other) && updates[n] < kPart * updates[other]);
  };
  std::vector<CurvePoint> drawn;
  for (std::size_t n = 0; n < points.size(); ++n) {
    // At n = 0, n - 1 wraps around to an index past the end, which stands for no neighbour.
    const bool is_short =
        points.size() > 1 && is_short_beside(n, n - 1) && is_short_beside(n, n + 1);
    const bool is_last = n + 1 == points.size();
    if (!is_short) {
      drawn.push_back(points[n]);
      continue;
    }
    const std::size_t into = is_last ? n - 1 : n + 1;
    const double mean = (updates[n] * *points[n].loss + updates[into] * *points[into].loss) /
                        (updates[n] + updates[into]);
    updates[into] += updates[n];
    if (is_last) drawn.back() = points[n];
    (is_last ? drawn.back() : points[into]).loss = mean;
  }
  return drawn;
}

// Adds one series per curve to a panel: the values of `number` at all points that have one.
class SeriesMaker {
 public:
  SeriesMaker(const std::vector<Curve>& curves, const HorizontalAxis& place)
      : curves_(curves), place_(place) {}

  void add(qkv::app::ChartPanel& panel, Number number, ChartStroke stroke, const char* name) const {
    for (std::size_t r = 0; r < curves_.size(); ++r) {
      ChartSeries series{.run = r, .stroke = stroke};
      const bool is_thin = stroke == ChartStroke::kThin;
      const CurvePoint* best = is_thin ? nullptr : best_of(curves_[r]);
      const std::vector<CurvePoint> losses =
          is_thin ? losses_drawn(curves_[r].points) : std::vector<CurvePoint>();
      for (const CurvePoint& point : is_thin ? losses : curves_[r].points) {
        if (!(point.*number)) continue;
        series.points.push_back(point_of(point, *(point.*number), r, name));
        if (&point == best) series.best = series.points.back();
      }
      if (!series.points.empty()) panel.series.push_back(std::move(series));
    }
  }

 private:
  ChartPoint point_of(const CurvePoint& point, double y, std::size_t run, const char* name) const {
    const std::string start =
        curves_.size() > 1 ? shown_name(curves_[run].run) + ", " : std::string();
    return {place_(point), y,
            fmt::format("{}update {}: {} {:.6g}{}", start, point.update, name, y,
                        point.counts ? "" : ", not counted")};
  }

  const std::vector<Curve>& curves_;
  const HorizontalAxis& place_;
};

bool have(const std::vector<Curve>& curves, Number number) {
  const auto has = [&](const CurvePoint& point) { return (point.*number).has_value(); };
  return std::ranges::any_of(
      curves, [&](const Curve& curve) { return std::ranges::any_of(curve.points, has); });
}

}  // namespace

Chart chart_of(const std::vector<Curve>& curves, CurveAxis axis) {
  const HorizontalAxis place(axis, curves);
  const SeriesMaker make(curves, place);
  Chart chart;
  chart.x_name = place.name();
  for (const Curve& curve : curves) chart.runs.push_back({shown_name(curve.run), remark_of(curve)});
  const bool validated = have(curves, &CurvePoint::valid_loss);
  if (have(curves, &CurvePoint::loss)) chart.thin_name = "training";
  if (validated) chart.marked_name = "validation";
  if (validated && have(curves, &CurvePoint::loss)) {
    chart.note =
        "Training loss includes dropout and label smoothing, validation loss does not: training "
        "may "
        "lie above validation.";
  }
  const std::string more = note_on_uncounted(curves);
  chart.note += (chart.note.empty() || more.empty() ? "" : " ") + more;
  qkv::app::ChartPanel losses{"loss per target token", {}};
  make.add(losses, &CurvePoint::loss, ChartStroke::kThin, "training loss");
  make.add(losses, &CurvePoint::valid_loss, ChartStroke::kMarked, "loss");
  if (!losses.series.empty()) chart.panels.push_back(std::move(losses));
  qkv::app::ChartPanel bleu{"BLEU", {}};
  make.add(bleu, &CurvePoint::bleu, ChartStroke::kMarked, "BLEU");
  if (!bleu.series.empty()) chart.panels.push_back(std::move(bleu));
  return chart;
}

std::string text_of(const std::vector<Curve>& curves) {
  const auto number = [](const std::optional<double>& value, int decimals) {
    return value ? fmt::format("{:.{}f}", *value, decimals) : std::string();
  };
  std::string text;
  for (const Curve& curve : curves) {
    std::vector<std::string> updates;
    std::vector<qkv::app::picture::Column> columns{{"epochs"},     {"seconds"}, {"loss"},
                                                   {"valid loss"}, {"BLEU"},    {"best"}};
    for (const CurvePoint& point : curve.points) {
      updates.push_back(fmt::to_string(point.update));
      const std::string cells[] = {
          number(point.epochs, 2), number(point.seconds, 1),
          number(point.loss, 4),   number(point.valid_loss, 4),
          number(point.bleu, 2),   point.is_best ? "*" : point.counts ? "" : "not counted"};
      for (std::size_t n = 0; n < columns.size(); ++n) columns[n].cells.push_back(cells[n]);
    }
    text += (text.empty() ? "" : "\n") + shown_name(curve.run) + "\n";
    text += qkv::app::picture::in_bands(updates, columns, table_columns());
  }
  return text;
}

Json json_of(const std::vector<Curve>& curves) {
  const auto put = [](Json& json, const char* name, const std::optional<double>& value) {
    if (value) json[name] = json_number(*value);
  };
  Json json;
  json["runs"] = Json::array();
  for (const Curve& curve : curves) {
    Json run;
    run["run"] = curve.run;
    run["points"] = Json::array();
    for (const CurvePoint& point : curve.points) {
      Json one;
      one["update"] = point.update;
      put(one, "epochs", point.epochs);
      one["seconds"] = point.seconds;
      put(one, "loss", point.loss);
      put(one, "valid_loss", point.valid_loss);
      put(one, "bleu", point.bleu);
      if (point.valid_loss || point.bleu) one["best"] = point.is_best;
      if (!point.counts) one["counts"] = false;
      run["points"].push_back(std::move(one));
    }
    json["runs"].push_back(std::move(run));
  }
  return json;
}
