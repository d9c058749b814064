// SPDX-License-Identifier: Apache-2.0
#include "about/demo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <qkv/attention.h>

#include "about/commands.h"
#include "shell/options.h"
#include "words/words.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

// Seed 001's.
constexpr const char* kSentence = "the cat walks on the street";

// ---- the sentence under the four scores -----------------------------------------------------

struct Scored {
  std::string_view name;
  WordAttention attention;
};

// A weight in percent, three columns wide, or a dot if it rounds to 0; on a terminal, on a
// background that gets brighter with the weight (the 24 greys of xterm's 256 colours start at 232).
std::string cell(double weight, bool colour) {
  std::string text = weight < 0.005 ? " . " : fmt::format("{:3.0f}", 100 * weight);
  if (!colour) return text;
  const int grey = 232 + static_cast<int>(std::lround(23 * std::clamp(weight, 0.0, 1.0)));
  return fmt::format("\x1b[48;5;{}m\x1b[38;5;{}m{}\x1b[0m", grey, weight < 0.5 ? 255 : 232, text);
}

// The scores of the four documents.
constexpr std::array kSeedScores{qkv::ScaledDot::kName, qkv::Dot::kName, qkv::Bilinear::kName,
                                 qkv::Additive::kName};

std::string four_scores(const Common& common, bool colour) {
  WordsOptions options;
  options.text = {kSentence};
  const WordInput input = read_words(options, common);
  std::vector<Scored> all;
  for (const Choice<qkv::Score>& score : kScores) {
    if (std::ranges::find(kSeedScores, score.name) == kSeedScores.end()) continue;
    options.score = score.value;
    all.push_back({score.name, attend_words(input, options, common, true)});
  }

  const auto words = static_cast<Index>(input.tokens.size());
  const auto block = static_cast<std::size_t>(3 * words);
  constexpr int kLabel = 9;
  std::string names(kLabel, ' ');
  std::string numbers(kLabel, ' ');
  for (const Scored& scored : all) {
    names += fmt::format("   {:<{}}", scored.name, block);
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

// ---- why d_k scaling matters ----------------------------------------------------------------

// softmax over the keys of q [Tq,D] and k [Tk,D], float64.
Tensor weights_of(const Tensor& q, const Tensor& k, const qkv::Score& score) {
  Tensor weights(DType::kFloat64, {q.size(0), k.size(0)});
  qkv::Options options;
  options.score = score;
  qkv::Outputs outputs;
  outputs.weights = weights.view();
  qkv::attention({q, k, {}}, options, outputs);
  return weights;
}

// Seed 000: the weight of key (2, ..., 2) against key (1, ..., 1) for the query (1, ..., 1).
double seed_weight(Index width, const qkv::Score& score) {
  Tensor q(DType::kFloat64, {1, width});
  Tensor k(DType::kFloat64, {2, width});
  std::ranges::fill(q.values<double>(), 1.0);
  std::ranges::fill(k.values<double>(), 1.0);
  std::ranges::fill(k.values<double>().first(static_cast<std::size_t>(width)), 2.0);
  return weights_of(q, k, score).view().at<double>({0, 0});
}

// Numbers of mean 0 and variance 1: sums of 12 uniform ones, the same on every machine.
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

struct DemoOptions {
  std::optional<Index> tokens{};
};

void run(const DemoOptions& options, const Common& common) {
  std::string text = three_dates(common);
  text += fmt::format(
      "\n\"{}\": spelling vectors, self-attention, no projections.\n"
      "Percentage of its attention that each word (row) gives to each word (column):\n",
      kSentence);
  text += four_scores(common, terminal_colours(common) != qkv::app::TerminalColours::kNone);
  text +=
      "scaled_dot q.k / sqrt(d), dot q.k, bilinear q.W.k, additive v.tanh(Wq.q + Wk.k): dot "
      "grows\nwith the width; W, Wq, Wk, v are random here, not learned as in the "
      "translator above.\n\n";
  text += scaling();
  const SeedReport report = seed_numbers();
  if (report.disagreeing == 0) {
    text += fmt::format(
        "exact: {} numbers printed in the four documents, largest difference {:.1e}"
        " (they are rounded)\n",
        report.numbers, report.largest_difference);
  } else {
    text += fmt::format("wrong: {} of the numbers printed in the four documents, {}\n",
                        report.disagreeing, report.worst);
  }
  print(text + "\n");  // can be read while the next part runs
  text = long_sequence(options.tokens, common);
  text += fmt::format("\nYour own words: {} words \"the cat sat on the mat\"\n", common.program);
  print(text);
}

}  // namespace

SeedReport seed_numbers() { return check_seed_numbers(embedded_seed_table()); }

void add_demo(const Command& program, const Common& common) {
  const Command command =
      program.add_command("demo", "dates translated, words under the four scores, 16,384 tokens");
  const auto options = std::make_shared<DemoOptions>();
  add_number(command, "--tokens", options->tokens, Bounds<Index>{64, Index{1} << 20},
             "length of the long sequence (default 16384; fewer on a slow machine)");
  command.footer("Examples:\n  qkv demo\n  qkv demo --color never --tokens 4096");
  command.callback([options, &common] { run(*options, common); });
}
