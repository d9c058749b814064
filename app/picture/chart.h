// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_CHART_H_
#define QKV_PICTURE_CHART_H_

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <qkv/app/picture.h>
#include <qkv/export.h>

namespace qkv::app {

// The bound on the absolute coordinates of a drawn point. Points beyond it, where an axis could
// overflow, are gaps.
inline constexpr double kMostDrawn = 1e15;

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string title{};  // shown when the pointer is on the point's mark; may be empty
};

// The style of a line. Thin lines are drawn behind marked ones.
enum class ChartStroke { kThin, kMarked };

struct ChartSeries {
  std::size_t run = 0;  // index into Chart::runs; the series has the colour of its run
  ChartStroke stroke = ChartStroke::kThin;
  std::vector<ChartPoint> points{};  // x never falls; non-finite numbers are gaps
  std::optional<ChartPoint> best{};  // the best of the points, drawn as a ring
};

// A part of a chart with its own y axis; all panels share the x axis.
struct ChartPanel {
  std::string name{};  // the name of the quantity, such as "BLEU"
  std::vector<ChartSeries> series{};
};

struct ChartRun {
  std::string name{};
  std::string remark{};  // shown after the run's name in the legend
};

// A chart that shows how numbers change along an x axis that begins at 0, for one or more runs. Its
// panels are one below the other.
struct Chart {
  std::string title{};
  std::string x_name{};
  std::string thin_name{};    // the meaning of thin lines in the legend; empty if there are none
  std::string marked_name{};  // the meaning of marked lines in the legend
  std::string note{};         // a remark about the lines; may be empty
  std::vector<ChartRun> runs{};
  std::vector<ChartPanel> panels{};
};

// Each function throws Error for a chart without a point and for a series whose run does not exist.
// Equal charts give equal bytes on every machine. Zoom, flag and errors of draw_png() and
// draw_pdf() are as for a Picture.
QKV_API std::string draw_svg(const Chart& chart);
QKV_API std::string draw_terminal(const Chart& chart, const TerminalStyle& style);
QKV_API std::string draw_png(const Chart& chart, double zoom = 2,
                             const std::atomic<bool>* stop = nullptr);
QKV_API std::string draw_pdf(const Chart& chart, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_PICTURE_CHART_H_
