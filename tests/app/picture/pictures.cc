// SPDX-License-Identifier: Apache-2.0
#include "tests/app/picture/pictures.h"

#include <limits>
#include <stdexcept>

namespace qkv::test {
namespace {

using Labels = std::vector<std::string>;

void add_panel(Drawn& drawn, Tensor weights, const std::string& title = "") {
  drawn.memory->push_back(std::move(weights));
  drawn.picture.panels.push_back({title, drawn.memory->back().view(), {}});
}

void mask(Drawn& drawn, std::size_t panel, Tensor allowed) {
  drawn.memory->push_back(std::move(allowed));
  drawn.picture.panels[panel].allowed = drawn.memory->back().view();
}

Drawn plain(const std::string& name, Index queries, Index keys) {
  Drawn drawn;
  drawn.name = name;
  add_panel(drawn, likely_weights(queries, keys, 1));
  return drawn;
}

Labels cycled(const Labels& words, std::size_t count) {
  Labels labels;
  for (std::size_t n = 0; n < count; ++n) labels.push_back(words[n % words.size()]);
  return labels;
}

const Labels kWords{"the",    "agreement", "on",     "European", "Economic", "Area",  "was",
                    "signed", "in",        "August", "1992",     ".",        "<end>", "it's"};

const Labels kHard{"Donaudampfschifffahrtselektrizitaetenhau",
                   "مرحبا",
                   "注意力机制",
                   "👨‍👩‍👧‍👦👍🏽🇩🇪",
                   "<b>&\"'",
                   "cafe\u0301",
                   " the",
                   "a\x1b[31mb\n",
                   "\xFF\xFE",
                   "שלום",
                   "] ]>&amp;",
                   "x"};

Drawn words() {
  Drawn drawn = plain("words", 8, 9);
  drawn.picture.title = "Translation, layer 2";
  drawn.picture.queries = {"l'", "accord", "sur", "la", "zone", "a", "été", "signé"};
  drawn.picture.keys = cycled(kWords, 9);
  drawn.picture.notes = {"mean of 8 heads"};
  return drawn;
}

Drawn sixty() {
  Drawn drawn = plain("sixty", 60, 60);
  drawn.picture.title = "Sixty words";
  drawn.picture.queries = cycled(kWords, 60);
  drawn.picture.keys = cycled(kWords, 60);
  Tensor allowed = all_allowed(60, 60);
  for (Index i = 0; i < 60; ++i) {
    for (Index j = i + 1; j < 60; ++j) allowed.view().at<bool>({i, j}) = false;
  }
  mask(drawn, 0, std::move(allowed));
  return drawn;
}

Drawn heads(const std::string& name, Index words) {
  Drawn drawn;
  drawn.name = name;
  drawn.picture.title = "Eight heads of layer 3";
  for (std::uint32_t h = 0; h < 8; ++h) {
    add_panel(drawn, likely_weights(words, words, h + 5), "head " + std::to_string(h));
  }
  drawn.picture.queries = cycled(kWords, static_cast<std::size_t>(words));
  drawn.picture.keys = drawn.picture.queries;
  return drawn;
}

// A picture with labels in many scripts, and with a masked row, a row of zeros and a row of NaN.
Drawn hard() {
  const auto n = static_cast<Index>(kHard.size());
  Drawn drawn;
  drawn.name = "hard";
  drawn.picture.title = "Labels <b>&\"' of all kinds: 注意力 مرحبا 👍🏽";
  drawn.picture.queries = kHard;
  drawn.picture.keys = kHard;
  drawn.picture.notes = {
      "row 2 adds to 0, not to 1",
      "A note that is so long that it has to be cut into several lines, because nobody makes a "
      "picture wider for the sake of what stands below it: <i>&amp;"};
  Tensor weights = likely_weights(n, n, 3);
  Tensor allowed = all_allowed(n, n);
  for (Index j = 0; j < n; ++j) {
    allowed.view().at<bool>({1, j}) = false;
    weights.view().at<float>({2, j}) = 0;
    weights.view().at<float>({3, j}) = std::numeric_limits<float>::quiet_NaN();
  }
  add_panel(drawn, std::move(weights));
  mask(drawn, 0, std::move(allowed));
  return drawn;
}

// A picture with one row of each kind of cell, small enough to show its numbers.
Drawn kinds(const std::string& name, app::ColourScale scale) {
  Drawn drawn;
  drawn.name = name;
  drawn.picture.scale = scale;
  drawn.picture.queries = {"number", "masked", "zero", "NaN", "infinite", "tiny"};
  Tensor weights = likely_weights(6, 5, 9);
  Tensor allowed = all_allowed(6, 5);
  for (Index j = 0; j < 5; ++j) {
    allowed.view().at<bool>({1, j}) = false;
    weights.view().at<float>({2, j}) = 0;
    weights.view().at<float>({3, j}) = std::numeric_limits<float>::quiet_NaN();
    weights.view().at<float>({4, j}) = std::numeric_limits<float>::infinity();
    weights.view().at<float>({5, j}) = 1e-6F;
  }
  add_panel(drawn, std::move(weights));
  mask(drawn, 0, std::move(allowed));
  return drawn;
}

Drawn scores() {
  Drawn drawn;
  drawn.name = "scores";
  Tensor weights = likely_weights(10, 20, 4);
  for (float& x : weights.values<float>()) x = x * 40 - 7;
  add_panel(drawn, std::move(weights), "scores");
  return drawn;
}

// A picture of numbers of both signs, centred at 0; the number farthest from 0 is negative.
Drawn difference(const std::string& name, app::ColourScale scale) {
  Drawn drawn = plain(name, 8, 8);
  const Tensor other = likely_weights(8, 8, 2);
  const auto weights = drawn.memory->back().values<float>();
  for (std::size_t n = 0; n < weights.size(); ++n) weights[n] -= other.values<float>()[n];
  weights[0] = -0.9F;
  drawn.picture.queries = cycled(kWords, 8);
  drawn.picture.keys = drawn.picture.queries;
  drawn.picture.colours = app::Colours::kRedBlue;
  drawn.picture.quantity = "difference";
  drawn.picture.scale = scale;
  return drawn;
}

// Adds pictures whose names, ranges or colours are not the defaults.
void add_styled(std::vector<Drawn>& all) {
  all.push_back(difference("difference", app::ColourScale::kLinear));
  all.push_back(difference("difference_log", app::ColourScale::kLog));
  all.push_back(difference("difference_sqrt", app::ColourScale::kSqrt));
  Drawn ranges = heads("map_ranges", 12);
  ranges.picture.range = app::ColourRange::kMap;
  ranges.picture.colours = app::Colours::kViridis;
  ranges.picture.row_name = "target";
  ranges.picture.column_name = "a name of keys that is wider than one map";
  all.push_back(std::move(ranges));
  Drawn rows = scores();
  rows.name = "row_ranges";
  rows.picture.range = app::ColourRange::kRow;
  rows.picture.colours = app::Colours::kCividis;
  all.push_back(std::move(rows));
  Drawn low = plain("named_row", 1, 12);
  low.picture.row_name = "注意力 of the decoder";
  low.picture.column_name = "source <b>";
  low.picture.colours = app::Colours::kGrey;
  all.push_back(std::move(low));
}

Drawn constant(const std::string& name, float value) {
  Drawn drawn;
  drawn.name = name;
  Tensor weights(DType::kFloat32, {3, 4});
  for (float& x : weights.values<float>()) x = value;
  add_panel(drawn, std::move(weights));
  return drawn;
}

}  // namespace

Tensor likely_weights(Index queries, Index keys, std::uint32_t seed) {
  Tensor weights(DType::kFloat32, {queries, keys});
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (Index i = 0; i < queries; ++i) {
    std::vector<double> row;
    double sum = 0;
    for (Index j = 0; j < keys; ++j) {
      state = state * 1664525U + 1013904223U;  // Knuth's and Lewis's generator
      const double draw = static_cast<double>(state >> 8) * 0x1p-24;
      const double away = static_cast<double>(i) / static_cast<double>(queries) -
                          static_cast<double>(j) / static_cast<double>(keys);
      const double near = 1 / (1 + 40 * away * away);
      row.push_back(near * near * near * draw * draw + 1e-4);
      sum += row.back();
    }
    for (Index j = 0; j < keys; ++j) {
      weights.view().at<float>({i, j}) = static_cast<float>(row[static_cast<std::size_t>(j)] / sum);
    }
  }
  return weights;
}

Tensor all_allowed(Index queries, Index keys) {
  Tensor allowed(DType::kBool, {queries, keys});
  for (Index i = 0; i < queries; ++i) {
    for (Index j = 0; j < keys; ++j) allowed.view().at<bool>({i, j}) = true;
  }
  return allowed;
}

std::vector<Drawn> drawn_pictures() {
  std::vector<Drawn> all{words(),
                         hard(),
                         kinds("kinds", app::ColourScale::kLinear),
                         kinds("kinds_sqrt", app::ColourScale::kSqrt),
                         kinds("kinds_log", app::ColourScale::kLog),
                         plain("one", 1, 1),
                         plain("row", 1, 50),
                         plain("column", 50, 1),
                         sixty(),
                         plain("large", 200, 200),
                         heads("heads", 12),
                         heads("heads_sixty", 60),
                         scores(),
                         constant("zeros", 0),
                         constant("constant", 0.25F)};
  Drawn tokens = plain("large_words", 200, 200);
  tokens.picture.queries = cycled(kWords, 200);
  tokens.picture.keys = tokens.picture.queries;
  all.push_back(std::move(tokens));
  Drawn row = plain("row_hard", 1, 50);
  row.picture.keys = cycled(kHard, 50);
  row.picture.queries = {kHard[0]};
  all.push_back(std::move(row));
  Drawn column = plain("column_hard", 50, 1);
  column.picture.queries = cycled(kHard, 50);
  column.picture.keys = {kHard[0]};
  all.push_back(std::move(column));
  // A picture in which no long Latin label makes room for labels in other scripts.
  Drawn wide = plain("wide", 3, 3);
  wide.picture.queries = {"👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽", "注意力机制注意力机制", "مرحبا"};
  wide.picture.keys = wide.picture.queries;
  all.push_back(std::move(wide));
  // A picture with a title wider than its map, and with a bar that ends before the largest number.
  Drawn narrow = plain("narrow", 4, 1);
  narrow.picture.panels[0].title = "encoder layer 11, head 3, mean over 512 examples";
  narrow.picture.highest = 0.5;
  narrow.picture.scale = app::ColourScale::kSqrt;
  all.push_back(std::move(narrow));
  Drawn many = heads("heads_hard", static_cast<Index>(kHard.size()));
  many.picture.queries = kHard;
  many.picture.keys = kHard;
  many.picture.panels.pop_back();
  all.push_back(std::move(many));
  add_styled(all);
  return all;
}

Drawn drawn_picture(const std::string& name) {
  for (Drawn& drawn : drawn_pictures()) {
    if (drawn.name == name) return drawn;
  }
  throw std::invalid_argument("no picture " + name);
}

}  // namespace qkv::test
