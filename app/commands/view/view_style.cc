// SPDX-License-Identifier: Apache-2.0
// The options of `qkv view` for the looks of pictures, and the check of their combinations.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include <qkv/tensor.h>

#include "commands/shell/exit_codes.h"
#include "commands/view/view.h"
#include "text/text.h"

namespace {

using qkv::app::Colours;

std::string name_of(Colours colours) {
  for (const auto& choice : kColours) {
    if (choice.value == colours) return std::string(choice.name);
  }
  return {};
}

void add_highest(const Command& command, std::optional<double>& highest) {
  command
      .add_parsed(
          "--max",
          [&highest](const std::string& text) {
            highest = qkv::app::parse_number<double>(text);
            if (!highest || *highest <= 0) {
              throw BadValue("--max", fmt::format("expected a number above 0, got {}",
                                                  qkv::app::quoted(text)));
            }
          },
          "the number at the top of the colour range (default: the largest shown)")
      .type_name("X");
}

void add_lowest(const Command& command, std::optional<double>& lowest) {
  command
      .add_parsed(
          "--min",
          [&lowest](const std::string& text) {
            lowest = qkv::app::parse_number<double>(text);
            if (!lowest) {
              throw BadValue("--min",
                             fmt::format("expected a number, got {}", qkv::app::quoted(text)));
            }
          },
          "the number at the bottom of the colour range (default: 0, or the smallest if any is "
          "negative); not for .html")
      .type_name("X");
}

void add_axes(const Command& command, std::vector<std::string>& axes) {
  command
      .add_parsed(
          "--axes",
          [&axes](const std::string& text) {
            const std::size_t comma = text.find(',');
            const bool one = comma != text.npos && text.find(',', comma + 1) == text.npos;
            if (!one || comma == 0 || comma + 1 == text.size()) {
              throw BadValue("--axes",
                             fmt::format("expected ROWS,COLUMNS, got {}", qkv::app::quoted(text)));
            }
            axes = {text.substr(0, comma), text.substr(comma + 1)};
          },
          "names of the axes (default: those of the file, or queries,keys)")
      .type_name("ROWS,COLUMNS");
}

void add_font(const Command& command, std::string& font) {
  command
      .add_parsed(
          "--font",
          [&font](const std::string& text) {
            if (text.empty() || text.find_first_of("'\"\\,;<>&") != text.npos ||
                qkv::app::printable(text) != text) {
              throw BadValue(
                  "--font",
                  fmt::format("expected one font's name, without quotes and commas, got {}",
                              qkv::app::quoted(text)));
            }
            font = text;
          },
          "font of .svg, .png and .pdf (default DejaVu Sans Mono, whose widths the layout "
          "assumes); an .svg only names it, .png and .pdf need it to be installed")
      .type_name("NAME");
}

}  // namespace

void add_style(const Command& command, PictureStyle& style) {
  add_choice(command, "--scale", style.scale, kScales,
             "how numbers map to colours (default linear; log: four decades)");
  add_choice(command, "--range", style.range, kRanges,
             "colour range: one per row, one per head (map), or one for all maps (default all)");
  add_lowest(command, style.lowest);
  add_highest(command, style.highest);
  add_choice(command, "--colours", style.colours, kColours,
             "colours (default blue; for differences red-blue, which is centred at 0)");
  add_axes(command, style.axes);
  command.add_option("--title", style.title, "title above the picture").type_name("TEXT");
  add_font(command, style.font);
  add_choice(command, "--notes", style.notes_drawn, kNotePlaces,
             "notes under the drawing (default), or aside: only in an .svg's <desc> and on "
             "standard error");
  add_choice(command, "--cell-titles", style.cell_titles, kCellTitles,
             "numbers under the pointer in an .svg (default auto: up to 20000 cells)");
}

[[noreturn]] void refuse_lowest() {
  throw UsageError("--min does not apply to colours that are centred at 0; --max sets both ends");
}

void check_style(const PictureStyle& style, bool is_difference) {
  if (style.highest && style.range != qkv::app::ColourRange::kAll) {
    throw UsageError("--max requires --range all: it is the end of one common range");
  }
  if (style.lowest && style.range != qkv::app::ColourRange::kAll) {
    throw UsageError("--min requires --range all: it is the end of one common range");
  }
  if (style.lowest && (is_difference || style.colours == Colours::kRedBlue)) {
    refuse_lowest();
  }
  if (style.lowest && style.scale == qkv::app::ColourScale::kLog && *style.lowest <= 0) {
    throw UsageError(
        fmt::format("--min: expected a number above 0 with --scale log, got {}", *style.lowest));
  }
  if (style.lowest && style.highest && *style.lowest >= *style.highest) {
    throw UsageError(fmt::format("--min: expected a number below --max {}, got {}", *style.highest,
                                 *style.lowest));
  }
  if (is_difference && style.colours.value_or(Colours::kRedBlue) != Colours::kRedBlue) {
    throw UsageError(fmt::format(
        "--colours {}: a difference has both signs and needs colours centred at 0; valid: red-blue",
        name_of(*style.colours)));
  }
}

void check_lowest(const PictureStyle& style, Colours colours, const qkv::Tensor& weights,
                  const qkv::Tensor& allowed) {
  if (!style.lowest) return;
  if (colours == Colours::kRedBlue) refuse_lowest();
  if (style.highest) return;
  const qkv::Tensor numbers = qkv::convert(weights.view(), qkv::DType::kFloat64);
  double most = -HUGE_VAL;
  for (std::size_t n = 0; n < numbers.values<double>().size(); ++n) {
    const double value = numbers.values<double>()[n];
    const bool is_masked = allowed.given() && !allowed.values<bool>()[n];
    if (!is_masked && std::isfinite(value)) most = std::max(most, value);
  }
  if (*style.lowest < most) return;
  if (!std::isfinite(most)) throw UsageError("--min: there is no finite number to draw");
  throw UsageError(fmt::format("--min: expected a number below {:g}, the largest shown, got {}",
                               most, *style.lowest));
}

void warn_of_font(const PictureStyle& style, const OutputOptions& outputs, const Common& common) {
  if (style.font.empty()) return;
  std::string formats;
  for (const std::string_view format : {"png", "pdf"}) {
    if (!wants(outputs, format)) continue;
    formats += fmt::format("{}.{}", formats.empty() ? "" : " and ", format);
  }
  if (formats.empty()) return;
  const std::string drawn = qkv::app::font_in_place_of(style.font, &stop_flag());
  if (drawn.empty()) return;
  warn(common, fmt::format("--font: {} is not installed here; {} takes its place in the {}",
                           qkv::app::quoted(style.font), drawn, formats));
}
