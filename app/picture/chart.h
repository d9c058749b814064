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

// Beyond it an axis could overflow, and nothing can be seen: such points are gaps.
inline constexpr double kMostDrawn = 1e15;

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string title{};  // of a mark, shown under the pointer; may be empty
};

// Thin lines are the background of marked ones.
enum class ChartStroke { kThin, kMarked };

struct ChartSeries {
  std::size_t run = 0;  // whose colour it has: an index of Chart::runs
  ChartStroke stroke = ChartStroke::kThin;
  std::vector<ChartPoint> points{};  // x does not fall; numbers that are not finite are gaps
  std::optional<ChartPoint> best{};  // of the points, ringed
};

// Axes of its own above the common x axis.
struct ChartPanel {
  std::string name{};  // of what it shows, "BLEU"
  std::vector<ChartSeries> series{};
};

struct ChartRun {
  std::string name{};
  std::string remark{};  // after its name in the legend
};

// How numbers run over one axis that begins at 0, for one or more runs: panels one below the other.
struct Chart {
  std::string title{};
  std::string x_name{};
  std::string thin_name{};  // what lines of either kind are, for the legend; empty: there is none
  std::string marked_name{};
  std::vector<ChartRun> runs{};
  std::vector<ChartPanel> panels{};
};

// All throw Error for a chart without a point, and for a run that is not there. The same chart
// gives the same bytes everywhere. `draw_png` and the like are as those of a Picture.
QKV_API std::string draw_svg(const Chart& chart);
QKV_API std::string draw_terminal(const Chart& chart, const TerminalStyle& style);
QKV_API std::string draw_png(const Chart& chart, double zoom = 2,
                             const std::atomic<bool>* stop = nullptr);
QKV_API std::string draw_pdf(const Chart& chart, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_PICTURE_CHART_H_
