// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "view.h"

namespace {

using qkv::Index;
using qkv::app::AttentionFile;
using qkv::app::Fault;
using qkv::app::LeadingAxis;

// Faults that are written out; `qkv stats` lists all.
constexpr std::size_t kMostFaults = 3;

std::vector<std::string> names(const AttentionFile& file, LeadingAxis axis, std::string_view name,
                               const std::vector<Index>& indices) {
  std::vector<std::string> list;
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

// Returns the note.
std::string reduce(const Reduction& reduction, Shown& shown) {
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
  titles.assign(1, text);
  return mean ? text : text + ": rows need not sum to 1";
}

// "keys 2 of 9 not shown" with what they hold: rows of a part do not sum to 1.
void note_hidden(const AttentionFile& file, const ViewOptions& options, Shown& shown) {
  const Index queries = file.attn.size(3) - static_cast<Index>(shown.selection.queries.size());
  const Index keys = file.attn.size(4) - static_cast<Index>(shown.selection.keys.size());
  const std::string_view why = options.hide_special ? " (special tokens)" : "";
  std::vector<std::string>& notes = shown.picture.notes;
  if (queries > 0) {
    notes.push_back(fmt::format("{} of {} queries not shown{}", queries, file.attn.size(3), why));
  }
  if (keys == 0) return;
  const Unseen unseen = unseen_weight(file, shown.selection);
  notes.push_back(fmt::format(
      "{} of {} keys not shown{}: they hold {:.1f} % of a row's weight (most {:.1f} %); the rest "
      "is as it was",
      keys, file.attn.size(4), why, 100 * unseen.mean, 100 * unseen.most));
}

bool is_no_weights(Fault fault) {
  return fault == Fault::kNotFinite || fault == Fault::kNegative || fault == Fault::kRowSums ||
         fault == Fault::kTransposed;
}

// Rows that are no weights, of the heads that are shown.
std::vector<std::string> faults_of(const AttentionFile& file, const Selection& selection) {
  std::vector<std::string> lines;
  for (const Index layer : selection.layers) {
    for (const Index head : selection.heads) {
      const qkv::app::HeadReport report =
          qkv::app::head_report(file, selection.example, layer, head);
      const std::string place = place_of(file, report.statistics);
      for (const qkv::app::Warning& warning : report.warnings) {
        if (!is_no_weights(warning.fault)) continue;
        lines.push_back(place.empty() ? warning.text : fmt::format("{}: {}", place, warning.text));
      }
    }
  }
  if (lines.size() > kMostFaults + 1) {
    const std::size_t more = lines.size() - kMostFaults;
    lines.resize(kMostFaults);
    lines.push_back(fmt::format("and {} more like these; qkv stats lists all", more));
  }
  return lines;
}

std::string panel_title(const std::string& layer, const std::string& head) {
  return layer.empty() || head.empty() ? layer + head : layer + ", " + head;
}

void add_panels(Shown& shown) {
  const Index heads = shown.weights.size(1);
  const Index queries = shown.weights.size(2);
  const Index keys = shown.weights.size(3);
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

// Without tokens the numbers that the file counts by, unless they are the drawing's own.
std::vector<std::string> labels(const qkv::app::Strings& tokens, const std::vector<Index>& indices,
                                Index size) {
  if (!tokens.values.empty()) return tokens.values;
  std::vector<std::string> list;
  if (ranges_of(indices) == ranges_of(resolve({}, "", "", size))) return list;
  for (const Index index : indices) list.push_back(fmt::format("{}", index));
  return list;
}

}  // namespace

Shown show(const AttentionFile& file, const ViewOptions& options) {
  Shown shown;
  shown.selection = select(file, options);
  const Selection& part = shown.selection;
  shown.weights = gathered(file.attn, part);
  if (file.mask.given()) shown.allowed = gathered(file.mask, part);
  shown.layers = names(file, LeadingAxis::kLayers, "layer", part.layers);
  shown.heads = names(file, LeadingAxis::kHeads, "head", part.heads);
  shown.src = chosen(file.src, part.example, part.keys);
  shown.tgt = chosen(file.tgt, part.example, part.queries);
  shown.stored_rank = static_cast<int>(file.order.size()) + 2;

  qkv::app::Picture& picture = shown.picture;
  picture.title = options.title;
  picture.scale = options.scale;
  picture.keys = labels(shown.src, part.keys, file.attn.size(4));
  picture.queries = labels(shown.tgt, part.queries, file.attn.size(3));
  if (options.example >= 0 && file.attn.size(0) > 1) {
    picture.notes.push_back(fmt::format("example {} of {}", part.example, file.attn.size(0)));
  }
  for (const Omission& omission : part.omissions) picture.notes.push_back(omission.text);
  for (const Reduction& reduction : options.reductions) {
    const std::string note = reduce(reduction, shown);
    if (!note.empty()) picture.notes.push_back(note);
  }
  note_hidden(file, options, shown);
  shown.faults = faults_of(file, part);
  picture.notes.insert(picture.notes.end(), shown.faults.begin(), shown.faults.end());
  add_panels(shown);
  return shown;
}
