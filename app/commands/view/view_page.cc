// SPDX-License-Identifier: Apache-2.0
// The page that `qkv view -o FILE.html` writes: the selected maps of all examples, or of one.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/error.h>

#include "commands/shell/array_store.h"
#include "commands/shell/exit_codes.h"
#include "commands/view/view.h"

namespace {

using qkv::Index;
using qkv::app::AttentionFile;

constexpr std::string_view kSelect =
    "select with --example, --layers, --heads, --queries or --keys, or combine with --reduce";

// The options for one example, all of whose layers and heads are shown by default.
ViewOptions options_of(const ViewOptions& options, const std::string& spec, Index example) {
  ViewOptions one = options;
  one.input.spec = spec;
  const std::string name = split_spec(options.input.spec).name;  // the default for --minus, too
  if (!name.empty()) one.input.options.name = name;
  one.choice.example = example;
  one.all_maps = true;
  one.style.title.clear();  // the picture's title is then the example's
  if (options.is_difference()) {
    one.style.colours.reset();  // --colours is for the difference
    one.minus.clear();
  }
  return one;
}

// Refuses a page that would be too large, before any map is copied.
void check_size(const AttentionFile& file, const std::vector<Index>& examples,
                const ViewOptions& options) {
  Index cells = 0;
  Index longest = 0;
  for (const Index example : examples) {
    const Selection part = select(file, options_of(options, options.input.spec, example));
    const Index queries = std::ssize(part.queries);
    const Index keys = std::ssize(part.keys);
    const Index maps = std::ssize(part.layers) * std::ssize(part.heads);
    cells += maps * queries * keys * (options.is_difference() ? 2 : 1);
    longest = std::max({longest, queries, keys});
  }
  if (longest > qkv::app::kMostPageTokens) {
    throw UsageError(fmt::format("a page's maps have at most {} queries or keys, got {}: {}",
                                 qkv::app::kMostPageTokens, longest, kSelect));
  }
  if (cells > qkv::app::kMostPageCells && options.reductions.empty()) {
    throw UsageError(fmt::format("a page holds at most {} weights, got {}: {}",
                                 qkv::app::kMostPageCells, cells, kSelect));
  }
}

void add_notes(const std::vector<Note>& notes, const std::string& file,
               std::vector<std::string>& list) {
  for (const Note& note : notes) {
    if (std::ranges::find(list, note.text) != list.end()) continue;
    list.push_back(file.empty() ? note.text : fmt::format("{}: {}", file, note.text));
  }
}

// Indices, or none if they count from 0 without gaps.
std::vector<Index> unusual(const std::vector<Index>& indices) {
  const bool usual =
      ranges_of(indices) == ranges_of(resolve({}, "", "", static_cast<Index>(indices.size())));
  return usual ? std::vector<Index>() : indices;
}

// The mean entropy of each selected map's rows before pooling; none if the file does not store
// these entropies, or if the maps shown are parts or reductions of the file's.
std::vector<double> entropies_of(const AttentionFile& file, const Selection& part,
                                 const ViewOptions& options) {
  std::vector<double> means;
  const bool whole = std::ssize(part.queries) == file.attn.size(3) &&
                     std::ssize(part.keys) == file.attn.size(4) && options.reductions.empty();
  if (!file.row_entropy.given() || !whole) return means;
  for (const Index layer : part.layers) {
    for (const Index head : part.heads) {
      double sum = 0;
      Index rows = 0;
      for (Index row = 0; row < file.row_entropy.size(4); ++row) {
        const double entropy = file.row_entropy.at<double>({part.example, layer, head, 0, row});
        if (!std::isfinite(entropy)) continue;  // a NaN row
        sum += entropy;
        ++rows;
      }
      means.push_back(rows > 0 ? sum / static_cast<double>(rows) : 0);
    }
  }
  return means;
}

std::string name_of(const std::string& spec) {
  return split_spec(spec).file == "-" ? "" : shown_name(spec);
}

}  // namespace

PageParts page_parts(const AttentionFile& file, const AttentionFile* minus,
                     const ViewOptions& options) {
  const std::vector<Index> examples = page_examples(file, options);
  if (minus != nullptr && minus->attn.size(0) <= examples.back()) {
    throw qkv::app::InputError(
        input_name(options.minus),
        fmt::format("must have example {}, as {} has, got {} examples", examples.back(),
                    options.input.name(), minus->attn.size(0)));
  }
  check_size(file, examples, options);
  PageParts parts;
  qkv::app::Page& page = parts.page;
  for (const Index example : examples) {
    const ViewOptions one_example = options_of(options, options.input.spec, example);
    qkv::app::PageExample& one = page.examples.emplace_back();
    const Shown& shown = parts.shown.emplace_back(show(file, nullptr, one_example));
    add_notes(shown.notes, "", one.notes);
    if (file.row_entropy.given()) {
      one.notes.push_back(
          fmt::format("pooled: {} rows stand for {} queries; a cell is the weight of its keys, "
                      "averaged over its queries",
                      file.attn.size(3), file.row_entropy.size(4)));
    }
    one.title = shown.picture.title;
    one.number = example;
    one.weights = shown.weights.view();
    if (shown.allowed.given()) one.allowed = shown.allowed.view();
    one.queries = shown.tgt.values;
    one.keys = shown.src.values;
    one.query_indices = unusual(shown.selection.named);
    one.key_indices = unusual(shown.selection.keys);
    one.entropies = entropies_of(file, shown.selection, options);
    if (minus == nullptr) continue;
    ViewOptions with_minus = one_example;
    with_minus.minus = options.minus;
    // show() also checks that the maps of the files match.
    add_notes(show(file, minus, with_minus).notes, "", one.notes);
    const Shown& other = parts.shown.emplace_back(
        show(*minus, nullptr, options_of(options, options.minus, example)));
    add_notes(other.notes, shown_name(options.minus), one.notes);
    one.other = other.weights.view();
    if (other.allowed.given()) one.other_allowed = other.allowed.view();
  }
  const Shown& first = parts.shown.front();
  page.title = options.style.title;
  page.layers = first.layers;
  page.heads = first.heads;
  page.name = name_of(options.input.spec);
  if (minus != nullptr) page.other_name = shown_name(options.minus);
  page.row_name = first.picture.row_name;
  page.column_name = first.picture.column_name;
  page.quantity = first.picture.quantity;
  page.scale = options.style.scale;
  page.range = options.style.range;
  page.colours = first.picture.colours;
  page.highest = options.style.highest;
  return parts;
}

std::string page_bytes(const PageParts& parts) {
  try {
    return qkv::app::draw_page(parts.page, &stop_flag());
  } catch (const qkv::Error& error) {
    throw UsageError(std::string(error.what()).substr(error.function().size() + 2));
  }
}
