// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "picture/chart.h"
#include "picture/child.h"
#include "text/numbers.h"
#include "text/text.h"

namespace qkv::app {
namespace {

constexpr const char* kProgram = "rsvg-convert";
constexpr double kMostZoom = 100;
// The most pixels in a row or column, which is the limit of librsvg's surfaces, and the most in
// total, which bounds the time.
constexpr double kMostPixelsInLine = 32767;
constexpr double kMostPixels = 1e8;

// The number after the first `attribute` (such as ` width="`) in an SVG that was drawn here.
double size_of(std::string_view svg, std::string_view attribute) {
  const std::size_t at = svg.find(attribute) + attribute.size();
  return parse_number<double>(svg.substr(at, svg.find('"', at) - at)).value_or(1);
}

bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1A\n") &&
         bytes.ends_with(std::string_view("IEND\xAE\x42\x60\x82"));
}

bool is_pdf(std::string_view bytes) {
  while (bytes.ends_with('\n') || bytes.ends_with('\r')) bytes.remove_suffix(1);
  return bytes.starts_with("%PDF-") && bytes.ends_with("%%EOF");
}

// Draws the SVG without titles of cells, which a rendered picture cannot show.
std::string untitled_svg(Picture picture) {
  picture.cell_titles = CellTitles::kNever;
  return draw_svg(picture);
}

struct Kind {
  std::string_view name;
  bool (*matches)(std::string_view bytes);
};

std::string rendered(const std::string& svg, std::vector<std::string> arguments, const Kind& kind,
                     const std::atomic<bool>* stop) {
  // A large map needs a document larger than librsvg's limit; the document was drawn here and is
  // trusted.
  arguments.emplace_back("--unlimited");
  const picture::ChildResult result = picture::run_child(kProgram, arguments, svg, stop);
  if (!result.found) {
    throw NotAvailable(
        fmt::format("{} needs {}: install the package librsvg2-bin", kind.name, kProgram));
  }
  if (result.status != 0 || result.output.empty()) {
    const std::string first = result.errors.substr(0, result.errors.find('\n'));
    throw std::runtime_error(fmt::format("{} failed ({}): {}", kProgram, result.status,
                                         first.empty() ? "no message" : printable(first)));
  }
  if (!kind.matches(result.output)) {
    throw std::runtime_error(
        fmt::format("{} gave no {} but {} other bytes", kProgram, kind.name, result.output.size()));
  }
  return result.output;
}

void check_zoom(double zoom) {
  if (zoom > 0 && zoom <= kMostZoom) return;
  throw Error("draw_png", "zoom",
              fmt::format("must be above 0 and at most {}, got {}", kMostZoom, zoom));
}

std::string png_of(const std::string& svg, double zoom, const std::atomic<bool>* stop) {
  const double width = size_of(svg, " width=\"");
  const double height = size_of(svg, " height=\"");
  const double most = std::min(kMostPixelsInLine / std::max(width, height),
                               std::sqrt(kMostPixels / (width * height)));
  const double used = std::min(zoom, std::floor(most * 1000) / 1000);
  return rendered(svg, {"--format=png", fmt::format("--zoom={}", used)}, {"PNG", is_png}, stop);
}

std::string pdf_of(const std::string& svg, const std::atomic<bool>* stop) {
  return rendered(svg, {"--format=pdf"}, {"PDF", is_pdf}, stop);
}

}  // namespace

std::string draw_png(const Picture& picture, double zoom, const std::atomic<bool>* stop) {
  check_zoom(zoom);
  return png_of(untitled_svg(picture), zoom, stop);
}

std::string draw_png(const Chart& chart, double zoom, const std::atomic<bool>* stop) {
  check_zoom(zoom);
  return png_of(draw_svg(chart), zoom, stop);
}

std::string draw_pdf(const Picture& picture, const std::atomic<bool>* stop) {
  return pdf_of(untitled_svg(picture), stop);
}

std::string draw_pdf(const Chart& chart, const std::atomic<bool>* stop) {
  return pdf_of(draw_svg(chart), stop);
}

}  // namespace qkv::app
