// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cfloat>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/page.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "page/json_text.h"
#include "page/map_code.h"
#include "page/map_facts.h"
#include "page/packed.h"
#include "page/page_code.h"
#include "picture/palettes.h"
#include "text/special_tokens.h"

namespace qkv::app {
namespace page {
namespace {

constexpr std::string_view kName = "draw_page";
constexpr Index kMostExactBytes = Index{4} << 20U;
constexpr double kMostText = 24e6;                 // 18 MB as base64
constexpr double kSteps[] = {65534, 16382, 4094};  // number of steps up to the largest magnitude
constexpr Index kSamples = 8;                      // maps from which the size of all is estimated

// ---- the checks ---------------------------------------------------------------------------------

std::string name_of(std::size_t example, std::string_view member) {
  return fmt::format("examples[{}].{}", example, member);
}

void check_maps(const ConstView& maps, std::string_view argument, const Dims& shape, bool masks) {
  if (masks ? maps.dtype() != DType::kBool : !is_real(maps.dtype())) {
    throw Error(
        kName, argument,
        fmt::format("must hold {}, got {}", masks ? "bool" : "real numbers", describe(maps)),
        ErrorKind::kType);
  }
  if (maps.shape() != shape) {
    throw Error(kName, argument,
                fmt::format("must be {}, got {}", to_string(shape), to_string(maps.shape())));
  }
}

void check_count(std::size_t got, Index want, std::string_view argument, std::string_view what) {
  if (got == 0 || static_cast<Index>(got) == want) return;
  throw Error(kName, argument, fmt::format("must be {} {} or none, got {}", want, what, got));
}

void check_example(const Page& page, std::size_t n) {
  const PageExample& example = page.examples[n];
  const ConstView& weights = example.weights;
  const std::string name = name_of(n, "weights");
  if (!weights.given()) throw Error(kName, name, "is absent");
  if (weights.rank() != 4 || weights.element_count() == 0) {
    throw Error(kName, name, "must be maps [L,H,Tq,Tk] with a cell, got " + describe(weights));
  }
  const Dims shape(static_cast<Index>(page.layers.size()), static_cast<Index>(page.heads.size()),
                   weights.size(2), weights.size(3));
  check_maps(weights, name, shape, false);
  if (std::max(shape[2], shape[3]) > kMostPageTokens) {
    throw Error(kName, name,
                fmt::format("must have at most {} queries or keys; got {} x {}", kMostPageTokens,
                            shape[2], shape[3]));
  }
  if (example.allowed.given()) check_maps(example.allowed, name_of(n, "allowed"), shape, true);
  if (example.other.given() != page.examples[0].other.given()) {
    throw Error(kName, name_of(n, "other"), "must be given for all examples or for none");
  }
  if (example.other.given()) check_maps(example.other, name_of(n, "other"), shape, false);
  if (example.other_allowed.given()) {
    if (!example.other.given()) throw Error(kName, name_of(n, "other_allowed"), "needs other");
    check_maps(example.other_allowed, name_of(n, "other_allowed"), shape, true);
  }
  check_count(example.queries.size(), shape[2], name_of(n, "queries"), "tokens");
  check_count(example.keys.size(), shape[3], name_of(n, "keys"), "tokens");
  check_count(example.entropies.size(), shape[0] * shape[1], name_of(n, "entropies"), "numbers");
  check_count(example.query_indices.size(), shape[2], name_of(n, "query_indices"), "indices");
  check_count(example.key_indices.size(), shape[3], name_of(n, "key_indices"), "indices");
}

void check(const Page& page) {
  if (page.examples.empty()) throw Error(kName, "examples", "must be at least one");
  Index cells = 0;
  for (std::size_t n = 0; n < page.examples.size(); ++n) {
    check_example(page, n);
    cells += page.examples[n].weights.element_count() * (page.examples[n].other.given() ? 2 : 1);
  }
  if (cells > kMostPageCells) {
    throw Error(
        kName, "examples",
        fmt::format("must have at most {} cells, got {}: select or reduce", kMostPageCells, cells));
  }
}

// ---- the parts of the document ------------------------------------------------------------------

// The sources of a page's maps: the file, the maps to compare with, and their difference, of which
// only facts and thumbnails are stored.
enum Source : std::size_t { kOwn, kOther, kDifference };

ConstView one_map(const ConstView& maps, Index layer, Index head) {
  if (!maps.given()) return {};
  const ConstView one = slice(slice(maps, 0, layer, layer + 1), 1, head, head + 1);
  return {one.data(), one.dtype(), Dims(one.size(2), one.size(3)),
          Dims(one.stride(2), one.stride(3))};
}

Map map_of(const PageExample& example, std::size_t source, Index layer, Index head) {
  const auto of = [&](const ConstView& numbers, const ConstView& allowed) {
    return Map(one_map(numbers, layer, head), one_map(allowed, layer, head));
  };
  if (source == kOther) return of(example.other, example.other_allowed);
  Map own = of(example.weights, example.allowed);
  if (source == kDifference) own.subtract(of(example.other, example.other_allowed));
  return own;
}

// An element that holds data for the script. Its text is base64 or JSON without `<`.
std::string data_element(std::string_view id, std::string_view type, std::string_view text) {
  return fmt::format("<script type=\"{}\" id=\"{}\">{}</script>\n", type, id, text);
}

constexpr std::string_view kBytes = "application/octet-stream";

// Writes the data of a page.
class Writer {
 public:
  Writer(const Page& page, const std::atomic<bool>* stop) : page_(page), stop_(stop) {}

  // The elements with all data.
  std::string data() {
    find_facts();
    choose_code();
    const std::string maps = all_maps();
    std::string elements = data_element("page", "application/json", header());
    for (std::size_t n = 0; n < page_.examples.size(); ++n) elements += thumbnails(n);
    return elements + masks_ + maps;
  }

 private:
  Index layers() const { return static_cast<Index>(page_.layers.size()); }
  Index heads() const { return static_cast<Index>(page_.heads.size()); }
  bool has_other() const { return page_.examples[0].other.given(); }
  std::size_t sources() const { return has_other() ? 3 : 1; }
  std::size_t stored_sources() const { return has_other() ? 2 : 1; }

  void poll() const {
    if (stop_ != nullptr && stop_->load()) throw Cancelled(kName);
  }

  // Calls f(layer, head) for each map of an example.
  template <class F>
  void for_each_map(const F& f) const {
    for (Index layer = 0; layer < layers(); ++layer) {
      for (Index head = 0; head < heads(); ++head) {
        poll();
        f(layer, head);
      }
    }
  }

  void find_facts() {
    for (std::size_t n = 0; n < page_.examples.size(); ++n) {
      const PageExample& example = page_.examples[n];
      facts_.emplace_back(sources());
      mask_numbers_.emplace_back(sources());
      mask_ids_.clear();
      std::string masks;
      for (std::size_t source = 0; source < sources(); ++source) {
        for_each_map([&](Index layer, Index head) {
          const Map map = map_of(example, source, layer, head);
          MapFacts facts = facts_of(map);
          if (source == kOwn && !example.entropies.empty()) {
            facts.entropy = example.entropies[static_cast<std::size_t>(layer * heads() + head)];
          }
          facts_[n][source].push_back(facts);
          mask_numbers_[n][source].push_back(mask_number(map, masks));
        });
      }
      masks_ += data_element(fmt::format("mask-{}", n), kBytes, masks);
    }
    for (const auto& example : facts_) {
      for (std::size_t source = 0; source < sources(); ++source) {
        for (const MapFacts& facts : example[source]) {
          const bool is_difference = source == kDifference;
          double& most = is_difference ? difference_magnitude_ : magnitude_;
          most = std::max(most, facts.magnitude);
          code_.signs = code_.signs || (!is_difference && facts.has_negative);
        }
      }
    }
  }

  // The number of a map's mask among the different masks of its example, or -1 without a mask.
  // Appends a new mask to `lines` as a line.
  Index mask_number(const Map& map, std::string& lines) {
    if (map.allowed().empty()) return -1;
    std::string bits = coded_bits(map.allowed());
    const auto [place, is_new] =
        mask_ids_.try_emplace(std::move(bits), static_cast<Index>(mask_ids_.size()));
    if (is_new) lines += (lines.empty() ? "" : "\n") + deflated(place->first);
    return place->second;
  }

  // The number of maps that are stored.
  Index map_count() const {
    return static_cast<Index>(page_.examples.size() * stored_sources()) * layers() * heads();
  }
  // Stored map n, counted by example, source, layer and head, as text.
  std::string map_text(Index n) const {
    const Index head = n % heads();
    const Index layer = n / heads() % layers();
    const auto rest = static_cast<std::size_t>(n / heads() / layers());
    const PageExample& example = page_.examples[rest / stored_sources()];
    const Map map = map_of(example, rest % stored_sources(), layer, head);
    return deflated(coded(map.numbers(), code_));
  }

  // The approximate length of all maps as text, extrapolated from kSamples maps at most.
  double text_size() const {
    const Index samples = std::min(map_count(), kSamples);
    double size = 0;
    for (Index n = 0; n < samples; ++n) {
      poll();
      size += static_cast<double>(map_text(n * map_count() / samples).size());
    }
    return size * static_cast<double>(map_count()) / static_cast<double>(samples);
  }

  void choose_code() {
    Index cells = 0;
    bool wide = false;
    for (const PageExample& example : page_.examples) {
      for (const ConstView* maps : {&example.weights, &example.other}) {
        if (!maps->given()) continue;
        cells += maps->element_count();
        wide = wide || maps->dtype() == DType::kFloat64;
      }
    }
    code_.form = wide ? NumberForm::kFloat64 : NumberForm::kFloat32;
    if (cells * (wide ? 8 : 4) <= kMostExactBytes) return;
    code_.form = NumberForm::kSteps;
    code_.most = magnitude_;
    for (const double steps : kSteps) {
      code_.step = std::max(magnitude_ / steps, DBL_MIN);
      if (text_size() <= kMostText) return;
    }
  }

  // Returns an element for each layer, with a line for each head: the page inflates only the heads
  // that it shows.
  std::string all_maps() const {
    std::string elements;
    for (std::size_t n = 0; n < page_.examples.size(); ++n) {
      for (std::size_t source = 0; source < stored_sources(); ++source) {
        std::string lines;
        for_each_map([&](Index layer, Index head) {
          lines += deflated(coded(map_of(page_.examples[n], source, layer, head).numbers(), code_));
          if (head + 1 < heads()) {
            lines += "\n";
            return;
          }
          elements += data_element(fmt::format("map-{}-{}-{}", n, source, layer), kBytes, lines);
          lines.clear();
        });
      }
    }
    return elements;
  }

  std::string thumbnails(std::size_t n) const {
    std::string elements;
    for (std::size_t source = 0; source < sources(); ++source) {
      std::string bytes;
      for_each_map([&](Index layer, Index head) {
        bytes += thumbnail(map_of(page_.examples[n], source, layer, head),
                           source == kDifference ? difference_magnitude_ : magnitude_,
                           source == kDifference || code_.signs);
      });
      elements += data_element(fmt::format("thumbnails-{}-{}", n, source), kBytes, deflated(bytes));
    }
    return elements;
  }

  std::string header() const;
  std::string example_json(std::size_t n) const;

  const Page& page_;
  const std::atomic<bool>* stop_;
  MapCode code_{};
  double magnitude_ = 0;             // the largest MapFacts::magnitude of all stored maps
  double difference_magnitude_ = 0;  // the largest of all differences
  std::vector<std::vector<std::vector<MapFacts>>> facts_{};      // by example, source, map
  std::vector<std::vector<std::vector<Index>>> mask_numbers_{};  // by example, source, map
  std::map<std::string, Index> mask_ids_{};                      // numbers by mask, of one example
  std::string masks_{};
};

// A JSON object of names and values. The values are JSON already.
std::string object(std::initializer_list<std::pair<std::string_view, std::string>> members) {
  std::string json;
  for (const auto& [name, value] : members) {
    json += fmt::format("{}\"{}\":{}", json.empty() ? "" : ",", name, value);
  }
  return "{" + json + "}";
}

std::string truth(bool value) { return value ? "true" : "false"; }

// The positions of special tokens.
std::vector<Index> special_places(const std::vector<std::string>& tokens) {
  std::vector<Index> places;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    if (is_special(tokens[n])) places.push_back(static_cast<Index>(n));
  }
  return places;
}

// An axis as JSON: its size, its tokens, their indices (null: from 0), and the places of special
// tokens.
std::string axis_json(const std::vector<std::string>& tokens, const std::vector<Index>& indices,
                      Index size) {
  return object({{"size", std::to_string(size)},
                 {"tokens", tokens.empty() ? "null" : json_of(tokens)},
                 {"indices", indices.empty() ? "null" : json_of(indices)},
                 {"special", json_of(special_places(tokens))}});
}

std::string facts_json(const MapFacts& facts, Index mask) {
  const bool any = facts.rows > 0;
  return json_list(std::vector<std::string>{
      json_of(facts.lowest), json_of(facts.highest), any ? json_of(facts.entropy) : "null",
      any ? json_of(facts.first) : "null", std::to_string(mask)});
}

std::string Writer::example_json(std::size_t n) const {
  const PageExample& example = page_.examples[n];
  std::vector<std::string> by_source;
  for (std::size_t source = 0; source < sources(); ++source) {
    std::vector<std::string> maps;
    for (std::size_t map = 0; map < facts_[n][source].size(); ++map) {
      maps.push_back(facts_json(facts_[n][source][map], mask_numbers_[n][source][map]));
    }
    by_source.push_back(json_list(maps));
  }
  return object(
      {{"title", json_of(example.title)},
       {"number", fmt::format("{}", example.number)},
       {"queries", axis_json(example.queries, example.query_indices, example.weights.size(2))},
       {"keys", axis_json(example.keys, example.key_indices, example.weights.size(3))},
       {"notes", json_of(example.notes)},
       {"facts", json_list(by_source)}});
}

std::string bar_json(const picture::Bar& bar) {
  std::vector<std::string> colours;
  for (const picture::Rgb& colour : bar) colours.push_back(picture::hex(colour));
  return json_of(colours);
}

std::string palette_json(Colours colours) {
  const picture::Palette palette = picture::palette_of(colours);
  return object(
      {{"light", bar_json(palette.paper)},
       {"dark", bar_json(palette.terminal)},
       {"zero", json_of({picture::hex(palette.paper_zero), picture::hex(palette.terminal_zero)})},
       {"centred", truth(palette.centred)}});
}

constexpr std::pair<std::string_view, Colours> kPalettes[] = {{"blue", Colours::kBlue},
                                                              {"grey", Colours::kGrey},
                                                              {"viridis", Colours::kViridis},
                                                              {"cividis", Colours::kCividis},
                                                              {"red-blue", Colours::kRedBlue}};

std::string palettes_json() {
  std::string json;
  for (const auto& [name, colours] : kPalettes) {
    json += fmt::format("{}\"{}\":{}", json.empty() ? "" : ",", name, palette_json(colours));
  }
  return "{" + json + "}";
}

std::string_view palette_name(Colours colours) {
  return std::ranges::find(kPalettes, colours, [](const auto& p) { return p.second; })->first;
}

std::string_view form_name(NumberForm form) {
  return form == NumberForm::kSteps     ? "steps"
         : form == NumberForm::kFloat64 ? "float64"
                                        : "float32";
}

std::string Writer::header() const {
  std::vector<std::string> examples;
  for (std::size_t n = 0; n < page_.examples.size(); ++n) examples.push_back(example_json(n));
  const auto scale = static_cast<std::size_t>(page_.scale);
  const auto range = static_cast<std::size_t>(page_.range);
  constexpr std::string_view kScaleNames[] = {"linear", "sqrt", "log"};
  constexpr std::string_view kRangeNames[] = {"all", "head", "row"};
  return object(
      {{"title", json_of(page_.title)},
       {"name", json_of(page_.name)},
       {"other", has_other() ? json_of(page_.other_name) : "null"},
       {"layers", json_of(page_.layers)},
       {"heads", json_of(page_.heads)},
       {"rows", json_of(page_.row_name)},
       {"columns", json_of(page_.column_name)},
       {"quantity", json_of(page_.quantity)},
       {"scale", json_of(kScaleNames[scale])},
       {"range", json_of(kRangeNames[range])},
       {"colours", json_of(palette_name(page_.colours))},
       {"top", page_.highest ? json_of(*page_.highest) : "null"},
       {"code", object({{"form", json_of(form_name(code_.form))},
                        {"step", json_of(code_.step)},
                        {"signs", truth(code_.signs)},
                        {"error", json_of(code_.error())}})},
       {"pooled", truth(!page_.examples[0].entropies.empty())},
       {"magnitudes", json_list(std::vector<std::string>{json_of(magnitude_), json_of(magnitude_),
                                                         json_of(difference_magnitude_)})},
       {"palettes", palettes_json()},
       {"examples", json_list(examples)}});
}

// ---- the document -------------------------------------------------------------------------------

std::string policy() {
  const auto hash = [](std::string_view digest) { return base64(from_hex(digest)); };
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data: blob:; "
      "base-uri 'none'; form-action 'none'",
      hash(kScriptDigest), hash(kStyleDigest));
}

// Replaces each mark of the template, such as {{title}}, by its text. Marks in the texts stay.
std::string filled(std::string_view form,
                   const std::map<std::string_view, std::string_view>& texts) {
  std::string document;
  while (true) {
    const std::size_t begin = form.find("{{");
    document += form.substr(0, begin);
    if (begin == std::string_view::npos) return document;
    const std::size_t end = form.find("}}", begin);
    document += texts.at(form.substr(begin + 2, end - begin - 2));
    form.remove_prefix(end + 2);
  }
}

}  // namespace
}  // namespace page

std::string draw_page(const Page& page, const std::atomic<bool>* stop) {
  page::check(page);
  const std::string data = page::Writer(page, stop).data();
  const std::string title = page::html_of(
      page.title.empty() ? (page.name.empty() ? "Attention" : page.name) : page.title);
  return page::filled(page::kTemplate, {{"policy", page::policy()},
                                        {"title", title},
                                        {"style", page::kStyle},
                                        {"script", page::kScript},
                                        {"data", data}});
}

}  // namespace qkv::app
