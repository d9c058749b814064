// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/app/text.h>
#include <qkv/error.h>

#include "picture/child.h"

namespace qkv::app {
namespace {

constexpr const char* kProgram = "rsvg-convert";
constexpr double kMostZoom = 100;

}  // namespace

std::string draw_png(const Picture& picture, double zoom) {
  if (!(zoom > 0 && zoom <= kMostZoom)) {
    throw Error("draw_png", "zoom",
                fmt::format("must be above 0 and at most {}, got {}", kMostZoom, zoom));
  }
  // --unlimited: a large map is a large document, and it is our own.
  const picture::ChildResult result = picture::run_child(
      kProgram, {"--format=png", fmt::format("--zoom={}", zoom), "--unlimited"}, draw_svg(picture));
  if (!result.found) {
    throw NotAvailable(fmt::format("PNG needs {}: install the package librsvg2-bin", kProgram));
  }
  if (result.status != 0 || result.output.empty()) {
    const std::string first = result.errors.substr(0, result.errors.find('\n'));
    throw std::runtime_error(fmt::format("{} failed ({}): {}", kProgram, result.status,
                                         first.empty() ? "no message" : printable(first)));
  }
  return result.output;
}

}  // namespace qkv::app
