// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "text/text.h"
#include "words/words.h"

namespace {

using qkv::Index;

constexpr int kWeightWidth = 6;  // 0.1234
constexpr int kWidestName = 12;

// Text padded with spaces to a number of terminal columns.
std::string padded(const std::string& text, int width, bool right) {
  const std::string shown = qkv::app::shortened(text, width);
  const std::string blanks(static_cast<std::size_t>(width - qkv::app::display_width(shown)), ' ');
  return right ? blanks + shown : shown + blanks;
}

int shown_width(const std::string& word) {
  return std::min(kWidestName, qkv::app::display_width(word));
}

// Results of one head: views without the head axis.
struct Head {
  qkv::ConstView weights;
  qkv::ConstView top_weights;
  qkv::ConstView top_keys;
};

Head head_of(const WordAttention& attention, Index head, bool heads) {
  const auto view = [&](const qkv::Tensor& tensor) -> qkv::ConstView {
    if (!tensor.given() || !heads) return tensor.view();
    const qkv::ConstView one = qkv::slice(tensor.view(), 0, head, head + 1);
    return qkv::reshape(one, {tensor.size(1), tensor.size(2)});
  };
  return {view(attention.weights), view(attention.top_weights), view(attention.top_keys)};
}

// "street 0.0541": the largest weight to any other position.
std::string strongest_other(const WordInput& input, const Head& head, Index word) {
  for (Index n = 0; n < head.top_keys.size(1); ++n) {
    const Index key = head.top_keys.at<std::int64_t>({word, n});
    if (key == word || key < 0) continue;
    return fmt::format(
        "{} {:.4f}", qkv::app::shortened(input.tokens[static_cast<std::size_t>(key)], kWidestName),
        head.top_weights.at<double>({word, n}));
  }
  return "-";
}

std::string table(const WordInput& input, const Head& head) {
  int label = 0;
  for (const std::string& token : input.tokens) label = std::max(label, shown_width(token));
  std::string text(static_cast<std::size_t>(label), ' ');
  for (const std::string& token : input.tokens) {
    text += "  " + padded(token, std::max(kWeightWidth, shown_width(token)), true);
  }
  text += "  strongest other\n";
  const auto words = static_cast<Index>(input.tokens.size());
  for (Index i = 0; i < words; ++i) {
    text += padded(input.tokens[static_cast<std::size_t>(i)], label, false);
    for (Index j = 0; j < words; ++j) {
      const int width =
          std::max(kWeightWidth, shown_width(input.tokens[static_cast<std::size_t>(j)]));
      text += fmt::format("  {:>{}.4f}", head.weights.at<double>({i, j}), width);
    }
    text += "  " + strongest_other(input, head, i) + "\n";
  }
  return text;
}

std::string links(const WordInput& input, const Head& head) {
  std::string text;
  for (std::size_t i = 0; i < input.tokens.size(); ++i) {
    text += fmt::format("{:>6} {} -> {}\n", i + 1, padded(input.tokens[i], kWidestName, false),
                        strongest_other(input, head, static_cast<Index>(i)));
  }
  return text;
}

}  // namespace

std::string word_report(const WordInput& input, const WordAttention& attention,
                        const WordsOptions& options) {
  const auto words = static_cast<Index>(input.tokens.size());
  std::string text =
      fmt::format("{} words, {} numbers each ({}); score {}, scale {:.6g}\n", words,
                  input.x.size(1), input.source, name_of(options.score), attention.scale);
  for (Index h = 0; h < std::max<Index>(1, options.heads); ++h) {
    const Head head = head_of(attention, h, options.heads > 0);
    text += options.heads > 0 ? fmt::format("\nhead {}\n", h) : "\n";
    text += words <= kLongestTable ? table(input, head) : links(input, head);
  }
  if (words > kLongestTable) {
    text += fmt::format("\nThe table of {} x {} weights is not shown; -o FILE.npz keeps it.\n",
                        words, words);
  }
  return text;
}
