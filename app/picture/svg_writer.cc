// SPDX-License-Identifier: Apache-2.0
#include "picture/svg_writer.h"

#include <cmath>

#include <fmt/format.h>

#include "picture/layout.h"

namespace qkv::app::picture {

std::string unit(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

void SvgWriter::text(std::string_view id, const TextSpot& spot, std::string_view content) {
  if (content.empty()) return;
  constexpr std::string_view kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  const double width = em_width(content) * spot.size;
  const double before = spot.anchor == Anchor::kStart    ? 0
                        : spot.anchor == Anchor::kMiddle ? width / 2
                                                         : width;
  if (spot.upright) {
    reach(spot.x + spot.size * 0.3, spot.y + before);
  } else {
    reach(spot.x + width - before, spot.y + spot.size * 0.3);
  }
  const std::string place =
      spot.upright
          ? fmt::format("transform=\"translate({} {})rotate(-90)\"", unit(spot.x), unit(spot.y))
          : fmt::format("x=\"{}\" y=\"{}\"", unit(spot.x), unit(spot.y));
  body_ += fmt::format("<text id=\"{}\" {} font-size=\"{}\"{}{} fill=\"{}\">{}</text>\n", id, place,
                       unit(spot.size), kAnchors[static_cast<int>(spot.anchor)],
                       spot.bold ? " font-weight=\"bold\"" : "", spot.fill, escaped(content));
}

void SvgWriter::box(const Box& box, std::string_view fill, std::string_view stroke) {
  reach(box.x + box.width, box.y + box.height);
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"",
                       unit(box.x), unit(box.y), unit(box.width), unit(box.height), fill);
  if (stroke != "none") body_ += fmt::format(" stroke=\"{}\" stroke-width=\"0.5\"", stroke);
  body_ += "/>\n";
}

void SvgWriter::open_group(std::string_view id, const Box& origin_and_scale) {
  const Box& at = origin_and_scale;
  body_ += fmt::format("<g{} transform=\"translate({} {})scale({:.6g} {:.6g})\">\n",
                       id.empty() ? "" : fmt::format(" id=\"{}\"", id), unit(at.x), unit(at.y),
                       at.width, at.height);
}

void SvgWriter::open_invisible_group(std::string_view id, const Box& origin_and_scale) {
  const Box& at = origin_and_scale;
  body_ += fmt::format(
      "<g id=\"{}\" fill=\"none\" pointer-events=\"all\" "
      "transform=\"translate({} {})scale({:.6g} {:.6g})\">\n",
      id, unit(at.x), unit(at.y), at.width, at.height);
}

void SvgWriter::titled_cell(long long column, long long row, std::string_view title) {
  body_ += fmt::format("<path d=\"M{} {}h1v1h-1z\"><title>{}</title></path>\n", column, row,
                       escaped(title));
}

void SvgWriter::open_named_group(std::string_view id) {
  body_ += fmt::format("<g id=\"{}\">\n", id);
}

void SvgWriter::path(std::string_view data, std::string_view paint) {
  body_ += fmt::format("<path {} d=\"{}\"/>\n", paint, data);
}

void SvgWriter::named_path(std::string_view id, std::string_view data, std::string_view paint) {
  body_ += fmt::format("<path id=\"{}\" {} d=\"{}\"/>\n", id, paint, data);
}

void SvgWriter::dot(double x, double y, double radius, std::string_view paint,
                    std::string_view title) {
  body_ +=
      fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" {}", unit(x), unit(y), unit(radius), paint);
  body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></circle>\n", escaped(title));
}

std::string SvgWriter::document(double margin, const Head& head) const {
  const std::string width = unit(std::ceil(right_ + margin));
  const std::string height = unit(std::ceil(bottom_ + margin));
  const std::string font = head.font.empty() ? "" : fmt::format("'{}', ", escaped(head.font));
  std::string text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"{2}'{3}', monospace\" "
      "xml:space=\"preserve\">\n",
      width, height, font, kUsualFont);
  if (!head.title.empty()) text += fmt::format("<title>{}</title>\n", escaped(head.title));
  if (!head.description.empty()) {
    text += fmt::format("<desc>{}</desc>\n", escaped(head.description));
  }
  text += head.definitions;
  text += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", width, height);
  return text + body_ + "</svg>\n";
}

}  // namespace qkv::app::picture
