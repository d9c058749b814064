// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "picture/child.h"
#include "text/numbers.h"
#include "text/text.h"

namespace qkv::app {
namespace {

constexpr const char* kProgram = "rsvg-convert";
constexpr double kMostZoom = 100;
// The limit of librsvg's surfaces on rows and columns; and a total that does not take too long.
constexpr double kMostPixelsInLine = 32767;
constexpr double kMostPixels = 1e8;

// The number after the first `attribute="` of our own document.
double size_of(std::string_view svg, std::string_view attribute) {
  const std::size_t at = svg.find(attribute) + attribute.size();
  return parse_number<double>(svg.substr(at, svg.find('"', at) - at)).value_or(1);
}

bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1A\n") &&
         bytes.ends_with(std::string_view("IEND\xAE\x42\x60\x82"));
}

}  // namespace

std::string draw_png(const Picture& picture, double zoom, const std::atomic<bool>* stop) {
  if (!(zoom > 0 && zoom <= kMostZoom)) {
    throw Error("draw_png", "zoom",
                fmt::format("must be above 0 and at most {}, got {}", kMostZoom, zoom));
  }
  const std::string svg = draw_svg(picture);
  const double width = size_of(svg, " width=\"");
  const double height = size_of(svg, " height=\"");
  const double most = std::min(kMostPixelsInLine / std::max(width, height),
                               std::sqrt(kMostPixels / (width * height)));
  const double used = std::min(zoom, std::floor(most * 1000) / 1000);
  // --unlimited: a large map is a large document, and we trust it: it is ours.
  const picture::ChildResult result = picture::run_child(
      kProgram, {"--format=png", fmt::format("--zoom={}", used), "--unlimited"}, svg, stop);
  if (!result.found) {
    throw NotAvailable(fmt::format("PNG needs {}: install the package librsvg2-bin", kProgram));
  }
  if (result.status != 0 || result.output.empty()) {
    const std::string first = result.errors.substr(0, result.errors.find('\n'));
    throw std::runtime_error(fmt::format("{} failed ({}): {}", kProgram, result.status,
                                         first.empty() ? "no message" : printable(first)));
  }
  if (!is_png(result.output)) {
    throw std::runtime_error(
        fmt::format("{} gave no PNG but {} other bytes", kProgram, result.output.size()));
  }
  return result.output;
}

}  // namespace qkv::app
