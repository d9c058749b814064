// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <qkv/app/translation_model.h>

#include "commands/about/demo.h"
#include "commands/shell/terminal.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::TranslatedText;

// A sentence whose word order changes: in French the noun precedes these adjectives.
constexpr const char* kEnglish = "He gave me a very interesting book.";
// A day that is not in DaySplit::kTrain, which a test checks.
constexpr const char* kDay = "third of may twenty fifteen";

// The character whose shade shows a weight from 0 to 1.
std::string_view shade(double weight, const qkv::app::TerminalStyle& style) {
  constexpr int kSteps = 4;
  constexpr std::string_view kBlocks[] = {" ", "░", "▒", "▓", "█"};
  constexpr std::string_view kLetters[] = {" ", ".", "+", "*", "#"};
  const auto step = static_cast<std::size_t>(
      std::clamp(static_cast<int>(std::ceil(weight * kSteps - 0.5)), 0, kSteps));
  return style.unicode ? kBlocks[step] : kLetters[step];
}

// A subword piece as it stands in the text: "▁car" is " car".
std::string in_text(const std::string& piece) {
  constexpr std::string_view kBlank = "▁";
  return piece.starts_with(kBlank) ? " " + piece.substr(kBlank.size()) : piece;
}

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int n = 0; n < times; ++n) all += text;
  return all;
}

// The attention map as text: a line with the source, then a line for each target piece, with shades
// as wide as the source pieces above them.
std::string map_of(const TranslatedText& translated, const qkv::app::TerminalStyle& style) {
  const auto source_pieces = std::ssize(translated.source) - 1;  // without the end token
  const auto target_pieces = std::ssize(translated.target) - 1;
  int label = 0;
  for (Index i = 0; i < target_pieces; ++i) {
    label = std::max(
        label, qkv::app::display_width(in_text(translated.target[static_cast<std::size_t>(i)])));
  }
  std::string text(static_cast<std::size_t>(label) + 2, ' ');
  for (Index j = 0; j < source_pieces; ++j)
    text += in_text(translated.source[static_cast<std::size_t>(j)]);
  text += "\n";
  for (Index i = 0; i < target_pieces; ++i) {
    const std::string piece = in_text(translated.target[static_cast<std::size_t>(i)]);
    text += "  " + piece + repeated(" ", label - qkv::app::display_width(piece));
    for (Index j = 0; j < source_pieces; ++j) {
      const std::string source = in_text(translated.source[static_cast<std::size_t>(j)]);
      const int blank = source.starts_with(' ') ? 1 : 0;
      const auto weight = static_cast<double>(translated.attention.view().at<float>({i, j}));
      text += repeated(" ", blank);
      text += repeated(shade(weight, style), qkv::app::display_width(source) - blank);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

TranslatedText translated(const qkv::app::TranslationModel& model, const char* text) {
  qkv::Context context;
  const std::string one = text;
  return std::move(qkv::app::translate(model, {&one, 1}, {.beam = 5}, context)[0]);
}

}  // namespace

TranslatedLine translated_sentence() {
  return {kEnglish, translated(qkv::app::english_french_model(), kEnglish)};
}

std::string sentence_report(const TranslatedLine& sentence, const Common& common) {
  return fmt::format(
      "1 A translation, and what each of its tokens attends to: {}\n{}"
      "A day that another model, of dates, was not trained on: \"{}\" -> {}\n",
      sentence.translation.text, map_of(sentence.translation, terminal_style(common)), kDay,
      translated(qkv::app::date_model(), kDay).text);
}
