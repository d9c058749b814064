// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/translation_model.h>

#include "about/demo.h"
#include "shell/terminal.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::TranslatedText;

// Three spellings of one day, which is not in DaySplit::kTrain (a test checks).
constexpr const char* kSpellings[] = {"Sunday the 3rd of May, 2015", "May 3rd 2015",
                                      "third of may twenty fifteen"};
constexpr int kLabel = 4;  // " 2 |"

// Shades for a weight from 0 to 1.
std::string shade(double weight, const qkv::app::TerminalStyle& style) {
  constexpr int kSteps = 4;
  constexpr const char* kBlocks[] = {" ", "░", "▒", "▓", "█"};
  constexpr const char* kLetters[] = {" ", ".", "+", "*", "#"};
  const auto step = static_cast<std::size_t>(
      std::clamp(static_cast<int>(std::ceil(weight * kSteps - 0.5)), 0, kSteps));
  return style.unicode ? kBlocks[step] : kLetters[step];
}

// The lines of one translation: the source, then a line for each character written.
std::vector<std::string> map_of(const TranslatedText& translated,
                                const qkv::app::TerminalStyle& style) {
  std::string head(kLabel, ' ');
  const std::size_t characters = translated.source.size() - 1;  // the end token is left out
  for (std::size_t j = 0; j < characters; ++j) head += translated.source[j];
  std::vector<std::string> lines{head};
  for (std::size_t i = 0; i + 1 < translated.target.size(); ++i) {
    std::string line = fmt::format(" {} |", translated.target[i]);
    for (std::size_t j = 0; j < characters; ++j) {
      const float weight =
          translated.attention.view().at<float>({static_cast<Index>(i), static_cast<Index>(j)});
      line += shade(static_cast<double>(weight), style);
    }
    lines.push_back(line + "|");
  }
  return lines;
}

void pad(std::string& line, int width) {
  const int missing = width - qkv::app::display_width(line);
  line.append(static_cast<std::size_t>(std::max(missing, 0)), ' ');
}

}  // namespace

std::string three_dates(const Common& common) {
  const std::vector<std::string> texts(std::begin(kSpellings), std::end(kSpellings));
  qkv::Context context;
  const std::vector<TranslatedText> translated =
      qkv::app::translate(qkv::app::date_model(), texts, {}, context);
  const qkv::app::TerminalStyle style = terminal_style(common);
  std::vector<std::string> lines;
  int width = 0;
  for (const TranslatedText& one : translated) {
    const std::vector<std::string> map = map_of(one, style);
    lines.resize(std::max(lines.size(), map.size()));
    for (std::size_t n = 0; n < lines.size(); ++n) {
      pad(lines[n], width);
      if (n < map.size()) lines[n] += map[n];
    }
    for (const std::string& line : lines) {
      width = std::max(width, qkv::app::display_width(line));
    }
    width += 2;
  }
  std::string text =
      "A day it never saw in training, spelled three ways, to ISO 8601; where each digit (down) "
      "looked:\n";
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}
