// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "commands/shell/array_store.h"
#include "commands/view/view.h"

namespace {

using qkv::Index;
using qkv::app::AttentionFile;
using qkv::app::Fault;
using qkv::app::LeadingAxis;

// The most heads that notes list for one fault.
constexpr int kMostOfAFault = 3;

std::vector<std::string> names(const AttentionFile& file, LeadingAxis axis, std::string_view name,
                               const std::vector<Index>& indices) {
  std::vector<std::string> list;
  list.reserve(indices.size());
  for (const Index index : indices) {
    list.push_back(has_axis(file, axis) ? fmt::format("{} {}", name, index) : "");
  }
  return list;
}

qkv::app::Strings chosen(const std::vector<qkv::app::Tokens>& lists, Index example,
                         const std::vector<Index>& indices) {
  if (lists.empty()) return {qkv::Dims(0), {}};
  const qkv::app::Tokens& tokens = lists[static_cast<std::size_t>(example)];
  qkv::app::Strings list{qkv::Dims(static_cast<Index>(indices.size())), {}};
  for (const Index index : indices) list.values.push_back(tokens[static_cast<std::size_t>(index)]);
  return list;
}

// Applies one reduction and returns a note on it; "" if there is nothing to reduce.
std::string reduce(const Reduction& reduction, bool are_weights, Shown& shown) {
  const bool layers = reduction.axis == LeadingAxis::kLayers;
  const int axis = layers ? 0 : 1;
  std::vector<std::string>& titles = layers ? shown.layers : shown.heads;
  const std::vector<Index>& indices = layers ? shown.selection.layers : shown.selection.heads;
  if (titles.size() == 1) return {};
  shown.weights = reduced(shown.weights, axis, reduction.statistic);
  if (shown.allowed.given()) shown.allowed = any_allowed(shown.allowed, axis);
  const bool mean = reduction.statistic == Statistic::kMean;
  const std::string text = fmt::format("{} of {} {}", mean ? "mean" : "maximum",
                                       layers ? "layers" : "heads", ranges_of(indices));
  titles.assign(1, "");  // the note has the title's content
  return mean || !are_weights ? text : text + ": rows need not sum to 1";
}

// The keys that are not shown only because the options do not select them: neither padding nor
// hidden special tokens.
std::vector<Index> unselected_keys(const AttentionFile& file, const Selection& part) {
  std::vector<char> selected(static_cast<std::size_t>(file.attn.size(4)));
  for (const std::vector<Index>* keys : {&part.keys, &part.special_keys}) {
    for (const Index key : *keys) selected[static_cast<std::size_t>(key)] = 1;
  }
  std::vector<Index> rest;
  for (Index key = 0; key < file.attn.size(4) - part.padding_keys; ++key) {
    if (selected[static_cast<std::size_t>(key)] == 0) rest.push_back(key);
  }
  return rest;
}

void note_queries(const AttentionFile& file, Shown& shown) {
  const Index all = file.attn.size(3) - shown.selection.padding_queries;
  const auto special = std::ssize(shown.selection.special_queries);
  const Index unselected = all - special - std::ssize(shown.selection.queries);
  if (unselected > 0) {
    shown.notes.push_back({fmt::format("{} of {} queries not selected", unselected, all)});
  }
  if (special > 0) {
    shown.notes.push_back({fmt::format("{} of {} queries hidden (special tokens)", special, all)});
  }
}

// Adds notes such as "2 of 9 keys not selected". If the maps are weights, the notes say how much
// weight these keys hold, since rows without these keys do not sum to 1.
void note_keys(const AttentionFile& file, bool are_weights, Shown& shown) {
  const Index all = file.attn.size(4) - shown.selection.padding_keys;
  const auto add = [&](const std::vector<Index>& keys, std::string_view how) {
    if (keys.empty()) return;
    if (!are_weights) {
      shown.notes.push_back({fmt::format("{} of {} keys {}", keys.size(), all, how)});
      return;
    }
    const Unseen unseen = unseen_weight(file, shown.selection, keys);
    shown.notes.push_back({fmt::format(
        "{} of {} keys {}: they hold {:.1f} % of a row's weight on average, at most {:.1f} %; the "
        "other weights are unchanged",
        keys.size(), all, how, 100 * unseen.mean, 100 * unseen.most)});
  };
  add(unselected_keys(file, shown.selection), "not selected");
  add(shown.selection.special_keys, "hidden (special tokens)");
}

// True for faults that a picture does not show: rows that are not weights, or weight at masked
// pairs. `qkv stats` reports all faults.
bool is_not_drawn(Fault fault) {
  return fault == Fault::kNotFinite || fault == Fault::kNegative || fault == Fault::kRowSums ||
         fault == Fault::kTransposed || fault == Fault::kMasked;
}

// Adds notes on the faults of the selected heads that the picture would not show.
void note_faults(const AttentionFile& file, Shown& shown) {
  std::vector<qkv::app::HeadReport> reports;
  for (const Index layer : shown.selection.layers) {
    for (const Index head : shown.selection.heads) {
      reports.push_back(qkv::app::head_report(file, shown.selection.example, layer, head));
      std::erase_if(reports.back().warnings,
                    [](const qkv::app::Warning& warning) { return !is_not_drawn(warning.fault); });
    }
  }
  for (std::string& line : fault_lines(file, reports, kMostOfAFault, "qkv stats --json")) {
    shown.notes.push_back({std::move(line)});
  }
}

qkv::app::Strings one_of(const qkv::app::Strings& sentences, Index example) {
  if (sentences.values.empty()) return {};
  return {qkv::Dims(1), {sentences.values[static_cast<std::size_t>(example)]}};
}

std::vector<Note> reduce_all(const std::vector<Reduction>& reductions, bool are_weights,
                             Shown& shown) {
  std::vector<Note> notes;
  for (const Reduction& reduction : reductions) {
    std::string text = reduce(reduction, are_weights, shown);
    if (!text.empty()) notes.push_back({std::move(text)});
  }
  return notes;
}

// Sets how output files name the queries. Queries 0, 1, 2, .. in order need no names, unless
// readers of a square map would give them the tokens of the keys. `rows` holds other queries'
// indices, if they ascend. Where it cannot be set, queries without tokens get their indices as
// tokens, in `tgt_in_files`.
void name_queries(const AttentionFile& file, Shown& shown) {
  const std::vector<Index>& named = shown.selection.named;
  const bool ascends = std::is_sorted(named.begin(), named.end());
  const bool counts = ascends && named.back() == std::ssize(named) - 1;
  // Readers compare `rows` with the places of keys, which must therefore be the keys 0, 1, 2, ..
  const std::vector<Index>& keys = shown.selection.keys;
  const bool has_places =
      std::is_sorted(keys.begin(), keys.end()) && keys.back() == std::ssize(keys) - 1;
  if (ascends && (!file.rows.empty() || (!counts && has_places))) {
    shown.rows = qkv::Tensor(qkv::DType::kInt64, {std::ssize(named)});
    std::copy(named.begin(), named.end(), shown.rows.values<std::int64_t>().begin());
    return;
  }
  const bool would_be_keys =
      !shown.src.values.empty() && named.size() == shown.selection.keys.size();
  if (!shown.tgt.values.empty() || (ascends && counts && !would_be_keys)) return;
  shown.tgt_in_files = {qkv::Dims(std::ssize(named)), {}};
  for (const Index query : named) shown.tgt_in_files.values.push_back(fmt::format("{}", query));
}

Shown part_of(const AttentionFile& file, const ViewOptions& options) {
  Shown shown;
  shown.selection = select(file, options);
  const Selection& part = shown.selection;
  shown.weights = gathered(file.attn, part);
  if (file.mask.given()) shown.allowed = gathered(file.mask, part);
  shown.layers = names(file, LeadingAxis::kLayers, "layer", part.layers);
  shown.heads = names(file, LeadingAxis::kHeads, "head", part.heads);
  shown.src = chosen(file.src, part.example, part.keys);
  shown.tgt = chosen(file.tgt, part.example, part.queries);
  name_queries(file, shown);
  if (!file.axes.empty()) shown.axes = {qkv::Dims(2), file.axes};
  shown.line = one_of(file.line, part.example);
  shown.translation = one_of(file.translation, part.example);
  // Scores are named in output files, where no array's name says what they are.
  const std::string quantity = quantity_of(file, options.input);
  if (!file.quantity.empty() || quantity == "score") shown.quantity = {qkv::Dims(1), {quantity}};
  shown.stored_rank = static_cast<int>(file.order.size()) + 2;
  return shown;
}

// The part of the subtracted file that corresponds to the one shown, after the same reductions.
Shown other_part(const AttentionFile& file, const ViewOptions& options, Index example) {
  if (example >= file.attn.size(0)) {
    throw qkv::app::InputError(input_name(options.minus),
                               fmt::format("must have example {}, as {} has, got {} examples",
                                           example, options.input.name(), file.attn.size(0)));
  }
  ViewOptions other = options;
  other.input.spec = options.minus;
  other.choice.example = example;
  Shown part = part_of(file, other);
  static_cast<void>(reduce_all(options.reductions, false, part));  // without notes
  return part;
}

void add_notes(const AttentionFile& file, const ViewOptions& options, Shown& shown) {
  const Selection& part = shown.selection;
  if (options.choice.example >= 0 && file.attn.size(0) > 1 && !options.all_maps) {
    shown.notes.push_back({example_name(file, part.example)});
  }
  shown.notes.insert(shown.notes.end(), part.omissions.begin(), part.omissions.end());
  // Row sums and faults are noted only for weights. An array of another name, whose quantity the
  // file does not name, counts as weights.
  const std::string quantity = quantity_of(file, options.input);
  const bool are_weights = !options.is_difference() && quantity != "score" &&
                           quantity != "difference" &&
                           (file.quantity.empty() || quantity == "weight");
  for (Note& note : reduce_all(options.reductions, are_weights, shown)) {
    shown.notes.push_back(std::move(note));
  }
  note_queries(file, shown);
  note_keys(file, are_weights, shown);
  if (are_weights) note_faults(file, shown);
}

std::string panel_title(const std::string& layer, const std::string& head) {
  return layer.empty() || head.empty() ? layer + head : layer + ", " + head;
}

void add_panels(Shown& shown) {
  const Index heads = shown.weights.size(1);
  const Index queries = shown.weights.size(2);
  const Index keys = shown.weights.size(3);
  // If there are several layers and heads, each row of panels is a layer.
  if (shown.weights.size(0) > 1 && heads > 1) shown.picture.columns = static_cast<int>(heads);
  const auto map = [&](const qkv::Tensor& maps, Index n) -> qkv::ConstView {
    if (!maps.given()) return {};
    const qkv::ConstView flat = qkv::reshape(maps.view(), {-1, queries, keys});
    return qkv::reshape(qkv::slice(flat, 0, n, n + 1), {queries, keys});
  };
  for (Index n = 0; n < shown.weights.size(0) * heads; ++n) {
    shown.picture.panels.push_back({panel_title(shown.layers[static_cast<std::size_t>(n / heads)],
                                                shown.heads[static_cast<std::size_t>(n % heads)]),
                                    map(shown.weights, n), map(shown.allowed, n)});
  }
}

// The labels of an axis: its tokens, or without them the indices in the file; none if all indices
// are shown in order.
std::vector<std::string> labels(const qkv::app::Strings& tokens, const std::vector<Index>& indices,
                                Index size) {
  if (!tokens.values.empty()) return tokens.values;
  std::vector<std::string> list;
  if (ranges_of(indices) == ranges_of(resolve({}, "", "", size))) return list;
  for (const Index index : indices) list.push_back(fmt::format("{}", index));
  return list;
}

// The title of a translation's picture: both sentences; "" if the file lacks them.
std::string sentences(const Shown& shown) {
  if (shown.line.values.empty() || shown.translation.values.empty()) return {};
  return fmt::format("{} → {}", shown.line.values[0], shown.translation.values[0]);
}

void set_style(const PictureStyle& style, const std::string& quantity, Shown& shown) {
  using qkv::app::Colours;
  qkv::app::Picture& picture = shown.picture;
  picture.title = style.title.empty() ? sentences(shown) : style.title;
  picture.quantity = quantity;
  picture.scale = style.scale;
  picture.range = style.range;
  picture.colours =
      style.colours.value_or(quantity == "difference" ? Colours::kRedBlue : Colours::kBlue);
  picture.highest = style.highest;
  picture.lowest = style.lowest;
  picture.cell_titles = style.cell_titles;
  picture.notes_drawn = style.notes_drawn;
  picture.font = style.font;
  if (!style.axes.empty()) shown.axes = {qkv::Dims(2), style.axes};
  if (shown.axes.values.empty()) return;
  picture.row_name = shown.axes.values[0];
  picture.column_name = shown.axes.values[1];
}

}  // namespace

std::string quantity_of(const AttentionFile& file, const AttentionInput& input) {
  if (!file.quantity.empty()) return file.quantity;
  const ArraySpec parts = split_spec(input.spec);
  const std::string& name = parts.name.empty() ? input.options.name : parts.name;
  if (name.empty() || name == "attn" || name == "weights" || name == "dropped") return "weight";
  const bool is_score = name == "scores" || name == "capped" || name == "masked";
  return is_score ? "score" : name;
}

Shown show(const AttentionFile& file, const AttentionFile* minus, const ViewOptions& options) {
  Shown shown = part_of(file, options);
  add_notes(file, options, shown);
  if (minus != nullptr)
    subtract(other_part(*minus, options, shown.selection.example), options, shown);
  const std::string quantity = minus != nullptr ? "difference" : quantity_of(file, options.input);
  if (quantity == "difference") {
    shown.array = quantity;
    shown.quantity = {};
  }
  set_style(options.style, quantity, shown);
  qkv::app::Picture& picture = shown.picture;
  picture.keys = labels(shown.src, shown.selection.keys, file.attn.size(4));
  picture.queries = labels(shown.tgt, shown.selection.named, file.attn.size(3));
  for (const Note& note : shown.notes) picture.notes.push_back(note.text);
  add_panels(shown);
  return shown;
}
