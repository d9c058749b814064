// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "picture/chart.h"
#include "picture/chart_model.h"
#include "picture/layout.h"
#include "picture/svg_paint.h"
#include "picture/svg_writer.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using namespace picture;  // NOLINT(google-build-using-namespace): this folder's own names

constexpr double kChartWidth = 800;
constexpr double kFirstHeight = 240;  // height of the first panel
constexpr double kNextHeight = 150;   // height of each other panel
constexpr double kBetweenPanels = 40;
constexpr double kSampleWidth = 22;  // width of a sample line in the legend
constexpr double kApart = 8;         // gap between a sample and its text
constexpr double kTickLabelGap = 6;
constexpr double kTickSpace = 84;  // width for each tick of the x axis
constexpr double kDotSpace = 7;    // closer dots would look like a thick line
constexpr std::string_view kGrid = "fill=\"none\" stroke=\"#e2e2e2\" stroke-width=\"1\"";
constexpr std::string_view kAxisLine = "fill=\"none\" stroke=\"#888\" stroke-width=\"1\"";

// The plot of a panel, and its y axis.
struct Plot {
  Box box{};
  ScaleAxis y{};

  double y_at(double value) const { return box.y + box.height * (1 - y.place(value)); }
};

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart) : chart_(chart) {
    check_chart(chart, "draw_svg");
    double labels = 0;
    for (const ChartPanel& panel : chart.panels) {
      plots_.push_back({{}, y_axis(panel, panel_height(plots_.size()) > kNextHeight ? 6 : 4)});
      for (const Tick& tick : plots_.back().y.ticks) {
        labels = std::max(labels, em_width(tick.text) * kSmallSize);
      }
    }
    left_ = kMargin + labels + kTickLabelGap;
    // The label of a tick at the right end is centred there, so half of it needs room.
    const double width = kChartWidth - kMargin - left_;
    x_ = x_axis(chart, static_cast<int>(width / kTickSpace));
    right_ = kChartWidth - kMargin - em_width(x_.ticks.back().text) * kSmallSize / 2;
  }

  std::string draw() {
    double y = kMargin;
    if (!chart_.title.empty()) {
      for (const std::string& line : wrapped_ems(printable(chart_.title), text_ems(kTitleSize))) {
        y += kTitleSize * (y > kMargin ? kLine : 1);
        svg_.text("title", {kMargin, y, kTitleSize, Anchor::kStart, kInk, false, true}, line);
      }
      y += 8;
    }
    y = note(legend(y));
    for (std::size_t p = 0; p < chart_.panels.size(); ++p) {
      y += p == 0 ? 28 : kBetweenPanels;
      plots_[p].box = {left_, y, right_ - left_, panel_height(p)};
      panel(p);
      y += plots_[p].box.height;
    }
    x_labels(y);
    svg_.box({kChartWidth - kMargin, y, 0, 0}, "none");  // makes the picture kChartWidth wide
    return svg_.document(kMargin, {"", printable(chart_.title), description(), ""});
  }

 private:
  static double panel_height(std::size_t p) { return p == 0 ? kFirstHeight : kNextHeight; }
  static double text_ems(double size) { return (kChartWidth - 2 * kMargin) / size; }
  double x_at(double value) const { return left_ + (right_ - left_) * x_.place(value); }

  // ---- legend -------------------------------------------------------------------------------

  static std::string stroke(std::size_t run, ChartStroke kind) {
    const std::string dashes = run < kRunColours ? "" : " stroke-dasharray=\"6 3\"";
    const std::string_view width = kind == ChartStroke::kThin
                                       ? "stroke-width=\"1.2\" stroke-opacity=\"0.5\""
                                       : "stroke-width=\"2\"";
    return fmt::format("fill=\"none\" stroke=\"{}\" {} stroke-linejoin=\"round\"{}",
                       hex(run_colour(run)), width, dashes);
  }

  // Draws a line for each run, then the meaning of thin and marked lines. Returns its bottom.
  double legend(double y) {
    const double size = kPanelTitleSize;
    const double start = kMargin + kSampleWidth + kApart;
    for (std::size_t r = 0; r < chart_.runs.size(); ++r) {
      const ChartRun& run = chart_.runs[r];
      const std::string text = printable(run.name) + (run.remark.empty() ? "" : "   " + run.remark);
      int n = 0;
      for (const std::string& line : wrapped_ems(text, (kChartWidth - kMargin - start) / size)) {
        if (n == 0) sample(y + size / 2 + 1, r, ChartStroke::kMarked, kMargin);
        svg_.text(fmt::format("run-{}{}", r, n == 0 ? "" : fmt::format("-{}", n)),
                  {start, y + size, size, Anchor::kStart, kInk}, line);
        y += size * 1.6;
        ++n;
      }
    }
    return kinds(y);
  }

  double kinds(double y) {
    double x = kMargin;
    const auto put = [&](ChartStroke kind, const std::string& name) {
      if (name.empty()) return;
      sample(y + kSmallSize / 2 + 1, 0, kind, x);
      x += kSampleWidth + kApart;
      svg_.text(kind == ChartStroke::kThin ? "thin" : "marked",
                {x, y + kSmallSize, kSmallSize, Anchor::kStart, kFaint}, name);
      x += em_width(name) * kSmallSize + 3 * kApart;
    };
    put(ChartStroke::kThin, chart_.thin_name);
    put(ChartStroke::kMarked, chart_.marked_name);
    if (has_best()) {
      ring(x + kApart, y + kSmallSize / 2 + 1, 0, "");
      svg_.text("best", {x + 2 * kApart + 4, y + kSmallSize, kSmallSize, Anchor::kStart, kFaint},
                "the best");
    }
    return x > kMargin ? y + kSmallSize * kLine : y;
  }

  // Draws the note below y. Returns the note's bottom.
  double note(double y) {
    if (chart_.note.empty()) return y;
    int n = 0;
    for (const std::string& line : wrapped_ems(printable(chart_.note), text_ems(kSmallSize))) {
      svg_.text(fmt::format("note{}", n == 0 ? "" : fmt::format("-{}", n)),
                {kMargin, y + kSmallSize * kLine, kSmallSize, Anchor::kStart, kFaint}, line);
      y += kSmallSize * kLine;
      ++n;
    }
    return y;
  }

  void sample(double middle, std::size_t run, ChartStroke kind, double x) {
    svg_.path(fmt::format("M{} {}h{}", unit(x), unit(middle), unit(kSampleWidth)),
              stroke(run, kind));
    if (kind == ChartStroke::kMarked) dot(x + kSampleWidth / 2, middle, run, "");
  }

  bool has_best() const {
    return std::ranges::any_of(chart_.panels, [](const ChartPanel& panel) {
      return std::ranges::any_of(panel.series,
                                 [](const auto& one) { return one.best.has_value(); });
    });
  }

  void dot(double x, double y, std::size_t run, std::string_view title) {
    svg_.dot(x, y, 2.6, fmt::format("fill=\"{}\"", hex(run_colour(run))), title);
  }
  void ring(double x, double y, std::size_t run, std::string_view title) {
    svg_.dot(x, y, 4.6,
             fmt::format("fill=\"#fff\" stroke=\"{}\" stroke-width=\"2\"", hex(run_colour(run))),
             title);
  }

  // ---- panels -------------------------------------------------------------------------------

  void panel(std::size_t p) {
    const Plot& plot = plots_[p];
    svg_.text(fmt::format("p{}-name", p),
              {left_, plot.box.y - 9, kPanelTitleSize, Anchor::kStart, kInk, false, true},
              printable(chart_.panels[p].name));
    grid(p);
    for (const ChartStroke kind : {ChartStroke::kThin, ChartStroke::kMarked}) {
      for (std::size_t s = 0; s < chart_.panels[p].series.size(); ++s) {
        const ChartSeries& one = chart_.panels[p].series[s];
        if (one.stroke == kind) series(fmt::format("p{}-s{}", p, s), one, plot);
      }
    }
    for (const ChartSeries& one : chart_.panels[p].series) {
      if (one.best && is_drawn(*one.best)) {
        ring(x_at(one.best->x), plot.y_at(one.best->y), one.run, one.best->title);
      }
    }
  }

  void grid(std::size_t p) {
    const Plot& plot = plots_[p];
    std::string lines;
    int n = 0;
    for (const Tick& tick : plot.y.ticks) {
      const double y = plot.box.y + plot.box.height * (1 - tick.place);
      lines += fmt::format("M{} {}H{}", unit(left_), unit(y), unit(right_));
      svg_.text(fmt::format("p{}-y{}", p, n++),
                {left_ - kTickLabelGap, y + kBaseline * kSmallSize, kSmallSize, Anchor::kEnd, kInk},
                tick.text);
    }
    for (const Tick& tick : x_.ticks) {
      lines += fmt::format("M{} {}v{}", unit(left_ + (right_ - left_) * tick.place),
                           unit(plot.box.y), unit(plot.box.height));
    }
    svg_.path(lines, kGrid);
    svg_.path(
        fmt::format("M{} {}H{}", unit(left_), unit(plot.box.y + plot.box.height), unit(right_)),
        kAxisLine);
  }

  void series(const std::string& id, const ChartSeries& one, const Plot& plot) {
    std::string data;
    std::size_t count = 0;
    const auto all = pieces(one);
    for (const auto& piece : all) {
      for (std::size_t n = 0; n < piece.size(); ++n) {
        data += fmt::format("{}{} {}", n == 0 ? 'M' : 'L', unit(x_at(piece[n].x)),
                            unit(plot.y_at(piece[n].y)));
      }
      count += piece.size();
    }
    if (data.empty()) return;
    svg_.named_path(id, data, stroke(one.run, one.stroke));
    // A single point is drawn as a dot, since a line through it has no length.
    const bool sparse = static_cast<double>(count) * kDotSpace <= right_ - left_;
    for (const auto& piece : all) {
      if (one.stroke == ChartStroke::kThin ? piece.size() > 1 : !sparse && piece.size() > 1) {
        continue;
      }
      for (const ChartPoint& at : piece) dot(x_at(at.x), plot.y_at(at.y), one.run, at.title);
    }
  }

  void x_labels(double bottom) {
    const double y = bottom + kTickLabelGap + kSmallSize;
    int n = 0;
    for (const Tick& tick : x_.ticks) {
      svg_.text(fmt::format("x{}", n++),
                {left_ + (right_ - left_) * tick.place, y, kSmallSize, Anchor::kMiddle, kInk},
                tick.text);
    }
    svg_.text("x-name",
              {(left_ + right_) / 2, y + kSmallSize * 1.6, kSmallSize, Anchor::kMiddle, kFaint},
              printable(chart_.x_name));
  }

  std::string description() const {
    std::string text = printable(fmt::format("over {}:", chart_.x_name));
    for (const ChartPanel& panel : chart_.panels) text += ' ' + printable(panel.name) + ';';
    for (const ChartRun& run : chart_.runs) {
      text += '\n' + printable(run.name) + (run.remark.empty() ? "" : ": " + printable(run.remark));
    }
    if (!chart_.note.empty()) text += '\n' + printable(chart_.note);
    return text;
  }

  const Chart& chart_;
  std::vector<Plot> plots_{};
  ScaleAxis x_{};
  double left_ = 0;
  double right_ = 0;
  SvgWriter svg_{};
};

}  // namespace

std::string draw_svg(const Chart& chart) { return ChartDrawing(chart).draw(); }

}  // namespace qkv::app
