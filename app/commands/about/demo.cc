// SPDX-License-Identifier: Apache-2.0
#include "commands/about/demo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/attention.h>

#include "commands/about/commands.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/shell/terminal.h"
#include "commands/train/translate.h"
#include "commands/words/words.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

// The sentence of seed document 001.
constexpr const char* kSentence = "the cat walks on the street";

// ---- the sentence under the four scores -----------------------------------------------------

struct Scored {
  std::string_view name;
  WordAttention attention;
};

// A weight in percent, three columns wide, or a dot if it is below 0.5 %. With `colour`, the cell's
// background is one of xterm's 24 greys (colours 232 to 255), brighter for larger weights.
std::string cell(double weight, bool colour) {
  std::string text = weight < 0.005 ? " . " : fmt::format("{:3.0f}", 100 * weight);
  if (!colour) return text;
  const int grey = 232 + static_cast<int>(std::lround(23 * std::clamp(weight, 0.0, 1.0)));
  return fmt::format("\x1b[48;5;{}m\x1b[38;5;{}m{}\x1b[0m", grey, weight < 0.5 ? 255 : 232, text);
}

// The scores that the four introductory documents (docs/seeds.md) use.
constexpr std::array kSeedScores{qkv::ScaledDot::kName, qkv::Dot::kName, qkv::Bilinear::kName,
                                 qkv::Additive::kName};

constexpr int kLabel = 9;  // width of the row labels, such as "3 walks"

// The weight tables of the scores in `all`, drawn side by side.
std::string band(const WordInput& input, std::span<const Scored> all, bool colour) {
  const auto words = static_cast<Index>(input.tokens.size());
  const auto table_width = static_cast<std::size_t>(3 * words);
  std::string names(kLabel, ' ');
  std::string numbers(kLabel, ' ');
  for (const Scored& scored : all) {
    names += fmt::format("   {:<{}}", scored.name, table_width);
    numbers += "   ";
    for (Index j = 1; j <= words; ++j) numbers += fmt::format("{:3}", j);
  }
  std::string text = names.substr(0, names.find_last_not_of(' ') + 1) + "\n" + numbers + "\n";
  for (Index i = 0; i < words; ++i) {
    text += fmt::format("{} {:<{}}", i + 1, input.tokens[static_cast<std::size_t>(i)], kLabel - 2);
    for (const Scored& scored : all) {
      text += "   ";
      for (Index j = 0; j < words; ++j) {
        text += cell(scored.attention.weights.view().at<double>({i, j}), colour);
      }
    }
    text += "\n";
  }
  return text;
}

std::string four_scores(const Common& common, bool colour) {
  WordsOptions options;
  options.text = {kSentence};
  const WordInput input = read_words(options, common);
  std::vector<Scored> all;
  for (const Choice<qkv::Score>& score : kScores) {
    if (std::ranges::find(kSeedScores, score.name) == kSeedScores.end()) continue;
    options.score = score.value;
    all.push_back({score.name, attend_words(input, options, {}, common, true)});
  }

  // All tables are side by side, or in several bands if the terminal is too narrow for that.
  const auto words = static_cast<int>(input.tokens.size());
  const int fitting = std::max(1, (table_columns() - kLabel) / (3 + 3 * words));
  const auto bands = table_columns() == 0 ? 1 : (std::ssize(all) + fitting - 1) / fitting;
  const auto per_band = static_cast<std::size_t>((std::ssize(all) + bands - 1) / bands);
  std::string text;
  for (std::size_t n = 0; n < all.size(); n += per_band) {
    text += band(input, std::span(all).subspan(n, std::min(per_band, all.size() - n)), colour);
  }
  return text;
}

// ---- why d_k scaling matters ----------------------------------------------------------------

// The weights [Tq,Tk] of queries q [Tq,D] over keys k [Tk,D], in float64.
Tensor weights_of(const Tensor& q, const Tensor& k, const qkv::Score& score) {
  Tensor weights(DType::kFloat64, {q.size(0), k.size(0)});
  qkv::Options options;
  options.score = score;
  qkv::Outputs outputs;
  outputs.weights = weights.view();
  qkv::attention({q, k, {}}, options, outputs);
  return weights;
}

// The example of seed document 000: the weight that a query of ones gives to a key of twos when the
// other key is of ones.
double seed_weight(Index width, const qkv::Score& score) {
  Tensor q(DType::kFloat64, {1, width});
  Tensor k(DType::kFloat64, {2, width});
  std::ranges::fill(q.values<double>(), 1.0);
  std::ranges::fill(k.values<double>(), 1.0);
  std::ranges::fill(k.values<double>().first(static_cast<std::size_t>(width)), 2.0);
  return weights_of(q, k, score).view().at<double>({0, 0});
}

// Fills a tensor with numbers of mean 0 and variance 1. Each is the sum of 12 uniform numbers
// minus 6, since the distributions of the standard library differ between machines.
void fill_random(Tensor& tensor, std::mt19937_64& random) {
  for (double& value : tensor.values<double>()) {
    value = -6;
    for (int n = 0; n < 12; ++n) value += static_cast<double>(random() >> 11) * 0x1p-53;
  }
}

// The largest of 16 weights, averaged over 200 random queries.
double mean_largest_weight(Index width, const qkv::Score& score) {
  constexpr Index kQueries = 200;
  constexpr Index kKeys = 16;
  std::mt19937_64 random(0);
  Tensor q(DType::kFloat64, {kQueries, width});
  Tensor k(DType::kFloat64, {kKeys, width});
  fill_random(q, random);
  fill_random(k, random);
  const Tensor weights = weights_of(q, k, score);
  double sum = 0;
  for (Index i = 0; i < kQueries; ++i) {
    const auto row = weights.values<double>().subspan(static_cast<std::size_t>(i * kKeys),
                                                      static_cast<std::size_t>(kKeys));
    sum += *std::ranges::max_element(row);
  }
  return sum / static_cast<double>(kQueries);
}

std::string scaling() {
  std::string text =
      "Why divide by sqrt(d)? A dot product of d random numbers has variance d: one key takes "
      "all.\n"
      "     d   weight of k = 2s, not 1s, for q = 1s     mean largest of 16 random weights\n"
      "         dot       scaled_dot                     dot       scaled_dot\n";
  for (const Index width : {2, 32, 512}) {
    text += fmt::format("{:6}   {:.4f}    {:.4f}                         {:.4f}    {:.4f}\n", width,
                        seed_weight(width, qkv::Dot{}), seed_weight(width, qkv::ScaledDot{}),
                        mean_largest_weight(width, qkv::Dot{}),
                        mean_largest_weight(width, qkv::ScaledDot{}));
  }
  return text;
}

std::string exactness(const SeedReport& report) {
  if (report.disagreeing > 0) {
    return fmt::format("3 Wrong: {} of the numbers printed in the four documents, {}\n",
                       report.disagreeing, report.worst);
  }
  return fmt::format(
      "3 Exact: {} numbers printed in the four documents, largest difference {:.1e} (they are "
      "rounded)\n",
      report.numbers, report.largest_difference);
}

struct DemoOptions {
  std::optional<Index> tokens{};
  OutputOptions outputs{};
};

// The lines that say which files were written and which commands to try next.
std::string next_steps(const DemoOptions& options, const Common& common) {
  std::string text;
  if (!options.outputs.paths.empty()) {
    std::vector<std::string> names;
    names.reserve(options.outputs.paths.size());
    for (const std::string& path : options.outputs.paths) names.push_back(shown_name(path));
    text += fmt::format("The translation's attention is also in {}.\n", fmt::join(names, ", "));
  }
  constexpr const char* kNext[] = {"translate --demo \"I am hungry.\" --show",
                                   "words \"the cat sat on the mat\" -o words.svg"};
  for (const char* next : kNext)
    text += fmt::format("Next: {} {}\n", shown_name(common.program), next);
  return text;
}

void run(const DemoOptions& options, const Common& common) {
  std::vector<TranslatedLine> sentence;
  Results files = translate_forms(sentence, {});
  files.brief = [] { return std::string(); };  // the report is printed below
  check_outputs(options.outputs, files);
  sentence.push_back(translated_sentence());
  std::string text = sentence_report(sentence[0], common);
  text += fmt::format("\n2 The four scores on \"{}\": % of its attention that each word gives:\n",
                      kSentence);
  text += four_scores(common, terminal_colours(common) != qkv::app::TerminalColours::kNone);
  text +=
      "Spelling vectors, no projections; the W, Wq, Wk, v of bilinear and additive are random "
      "here.\n";
  const SeedReport numbers = seed_numbers();
  text += scaling() + "\n" + exactness(numbers);
  print(text + "\n");  // printed now, to be read while the next part runs
  const LongSequence sequence = long_sequence(options.tokens, common);
  if (!options.outputs.paths.empty()) write_outputs(options.outputs, files);
  print(fmt::format("{}\n5 Yours: {}{}", sequence.report, sequence.custom,
                    next_steps(options, common)));
  if (numbers.disagreeing > 0) {
    throw std::runtime_error(fmt::format(
        "demo: {} of the numbers printed in the four documents are wrong", numbers.disagreeing));
  }
}

}  // namespace

SeedReport seed_numbers() { return check_seed_numbers(embedded_seed_table()); }

void add_demo(const Command& program, const Common& common) {
  const Command command = program.add_command(
      "demo", "translate a sentence, compare four scores, attend over 16,384 tokens");
  const auto options = std::make_shared<DemoOptions>();
  add_number(command, "--tokens", options->tokens, Bounds<Index>{64, Index{1} << 20},
             "length of the long sequence (default 16384; fewer on a slow machine)");
  command
      .add_option("-o,--output", options->outputs.paths,
                  "write the attention of the translation: .svg, .npz and so on, as qkv translate "
                  "does (repeatable)")
      .type_name("FILE")
      .one_each_time();
  command.footer(
      "Examples:\n  qkv demo\n  qkv demo --color never --tokens 4096\n"
      "  qkv demo --tokens 4096 -o alignment.svg");
  command.callback([options, &common] { run(*options, common); });
}
