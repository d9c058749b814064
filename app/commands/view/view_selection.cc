// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "commands/shell/exit_codes.h"
#include "commands/view/view.h"
#include "text/special_tokens.h"

namespace {

using qkv::Index;
using qkv::app::AttentionFile;
using qkv::app::LeadingAxis;

Index count(const std::vector<Index>& indices) { return static_cast<Index>(indices.size()); }

bool is_reduced(const ViewOptions& options, LeadingAxis axis) {
  return std::any_of(options.reductions.begin(), options.reductions.end(),
                     [axis](const Reduction& reduction) { return reduction.axis == axis; });
}

// Limits the maps that are shown by default: if there are more than kUsualMaps, to the first layer
// and its first kUsualMaps heads. Layers or heads that the options list or reduce are not limited.
void narrow(const ViewOptions& options, Selection& selection) {
  if (options.all_maps) return;
  const bool one_layer = is_reduced(options, LeadingAxis::kLayers);
  const bool one_head = is_reduced(options, LeadingAxis::kHeads);
  const auto maps = [&] {
    return (one_layer ? 1 : count(selection.layers)) * (one_head ? 1 : count(selection.heads));
  };
  const Index layers = count(selection.layers);
  const Index heads = count(selection.heads);
  if (maps() > kUsualMaps && !one_layer && !options.choice.layers.given() && layers > 1) {
    selection.layers.assign({0});
    selection.omissions.push_back(
        {fmt::format("layer 0 of {} shown", layers), "--layers LIST or all shows others"});
  }
  if (maps() > kUsualMaps && !one_head && !options.choice.heads.given() && heads > kUsualMaps) {
    selection.heads.erase(selection.heads.begin() + kUsualMaps, selection.heads.end());
    selection.omissions.push_back({fmt::format("heads 0-{} of {} shown", kUsualMaps - 1, heads),
                                   "--heads LIST or all shows others"});
  }
}

// Whether the mask excludes every query-key pair of a token: a query (axis 3) or a key (axis 4).
bool is_masked(const AttentionFile& file, Index example, int axis, Index token) {
  const qkv::ConstView one =
      qkv::slice(qkv::slice(file.mask, 0, example, example + 1), axis, token, token + 1);
  bool any = false;
  for (Index layer = 0; layer < one.size(1); ++layer) {
    for (Index head = 0; head < one.size(2); ++head) {
      for (Index i = 0; i < one.size(3); ++i) {
        for (Index j = 0; j < one.size(4); ++j) {
          any = any || one.at<bool>({0, layer, head, i, j});
        }
      }
    }
  }
  return !any;
}

// The number of tokens at the end of an axis that are padding and is_masked().
Index masked_padding(const AttentionFile& file, Index example, int axis) {
  const auto& lists = axis == 3 ? file.tgt : file.src;
  if (lists.empty() || !file.mask.given()) return 0;
  const qkv::app::Tokens& tokens = lists[static_cast<std::size_t>(example)];
  Index count = 0;
  for (Index n = std::ssize(tokens) - 1; n >= 0; --n) {
    if (!qkv::app::is_padding(tokens[static_cast<std::size_t>(n)])) break;
    if (!is_masked(file, example, axis, n)) break;
    ++count;
  }
  return count;
}

// The number of padding tokens to leave out of an axis. An axis that has only padding is kept
// whole, since the user requested the other axis.
Index padding_of(const AttentionFile& file, Index example, int axis) {
  const Index count = masked_padding(file, example, axis);
  return count == file.attn.size(axis) ? 0 : count;
}

// Whether all queries or all keys of an example are padding, as when an empty line is translated.
bool is_empty(const AttentionFile& file, Index example) {
  return masked_padding(file, example, 3) == file.attn.size(3) ||
         masked_padding(file, example, 4) == file.attn.size(4);
}

// Finds the example to show: by default the first one that is not empty.
void select_example(const AttentionFile& file, const ViewOptions& options, Selection& selection) {
  check_example(file, options.choice);
  const Index examples = file.attn.size(0);
  const bool is_chosen = options.choice.example >= 0;
  selection.example = std::max<Index>(0, options.choice.example);
  // Queries and keys that the options name are shown even if they are padding.
  if (!options.tokens.given() && !options.queries.given() && !options.keys.given()) {
    Index& n = selection.example;
    while (!is_chosen && n + 1 < examples && is_empty(file, n)) ++n;
    if (is_empty(file, n)) {
      throw UsageError(
          fmt::format("{}: nothing to draw{}: {} masked padding, like an empty line; "
                      "--queries all --keys all draws it",
                      options.input.name(), is_chosen ? " in " + example_name(file, n) : "",
                      is_chosen || examples == 1 ? "it has only" : "all examples have only"));
    }
  }
  if (examples == 1 || is_chosen) return;
  const Index n = selection.example;
  const std::string why = n == 0   ? ""
                          : n == 1 ? ": example 0 is empty"
                                   : fmt::format(": examples 0-{} are empty", n - 1);
  selection.omissions.push_back(
      {fmt::format("{} shown{}", example_name(file, n), why), "--example N shows others"});
}

// Removes padding at the end from the selection, unless the options name it: it is there only
// because another example is longer.
void leave_out_padding(const AttentionFile& file, const ViewOptions& options,
                       Selection& selection) {
  if (options.tokens.given()) return;
  const Index keys = padding_of(file, selection.example, 4);
  if (!options.keys.given()) {
    selection.padding_keys = keys;
    selection.keys.resize(selection.keys.size() - static_cast<std::size_t>(keys));
  }
  if (options.queries.given()) return;
  const Index masked = padding_of(file, selection.example, 3);
  // A mask of keys alone leaves the padding's rows unmasked; they are padding all the same.
  selection.padding_queries = file.same_tokens ? std::max(keys, masked) : masked;
  selection.queries.resize(selection.queries.size() -
                           static_cast<std::size_t>(selection.padding_queries));
  if (selection.padding_queries > masked) {
    selection.omissions.push_back({fmt::format("{} of {} queries are padding, not shown",
                                               selection.padding_queries, file.attn.size(3)),
                                   "--queries all shows them"});
  }
}

// The row indices of the queries that a list names. A file may have only some queries; a range
// selects those that it has.
std::vector<Index> resolve_queries(const AttentionFile& file, const IndexList& list) {
  if (file.rows.empty() || list.all || !list.given()) {
    return resolve(list, "--queries", "queries", file.attn.size(3));
  }
  std::vector<Index> rows;
  for (const IndexList::Range& range : list.ranges) {
    const auto begin = std::lower_bound(file.rows.begin(), file.rows.end(), range.first);
    const auto end = std::upper_bound(begin, file.rows.end(), range.last);
    if (begin == end) {
      throw UsageError(
          fmt::format("--queries {}: the file has queries {}", range.first, ranges_of(file.rows)));
    }
    for (auto query = begin; query != end; ++query) {
      const Index row = query - file.rows.begin();
      if (std::find(rows.begin(), rows.end(), row) != rows.end()) {
        throw UsageError(fmt::format("--queries names {} twice", *query));
      }
      rows.push_back(row);
    }
  }
  return rows;
}

void select_tokens(const AttentionFile& file, const ViewOptions& options, Selection& selection) {
  const Index queries = file.attn.size(3);
  const Index keys = file.attn.size(4);
  if (options.tokens.given() && queries != keys) {
    throw UsageError(
        fmt::format("--tokens is for maps whose queries are their keys, but there are "
                    "{} queries and {} keys: use --queries and --keys",
                    queries, keys));
  }
  const bool both = options.tokens.given();
  if (both && !file.rows.empty()) {
    throw UsageError("--tokens is for maps of all queries, but the array rows names queries " +
                     ranges_of(file.rows) + ": use --queries and --keys");
  }
  selection.queries = both ? resolve(options.tokens, "--tokens", "tokens", queries)
                           : resolve_queries(file, options.queries);
  selection.keys = resolve(both ? options.tokens : options.keys, both ? "--tokens" : "--keys",
                           both ? "tokens" : "keys", keys);
  leave_out_padding(file, options, selection);
}

// Removes the indices of special tokens, except those in `keep`, from `indices`, and returns them.
std::vector<Index> hide(const std::vector<qkv::app::Tokens>& lists, Index example,
                        std::string_view axis, const std::vector<std::string>& keep,
                        std::vector<Index>& indices) {
  if (lists.empty()) return {};
  const qkv::app::Tokens& tokens = lists[static_cast<std::size_t>(example)];
  const auto special = std::stable_partition(indices.begin(), indices.end(), [&](Index index) {
    const std::string& token = tokens[static_cast<std::size_t>(index)];
    return !qkv::app::is_special(token) ||
           std::any_of(keep.begin(), keep.end(), [&](const std::string& kept) {
             return qkv::app::is_same_special(kept, token);
           });
  });
  std::vector<Index> hidden(special, indices.end());
  indices.erase(special, indices.end());
  if (indices.empty()) throw UsageError(fmt::format("--hide-special leaves no {}", axis));
  return hidden;
}

Selection select_rows(const AttentionFile& file, const ViewOptions& options) {
  Selection selection;
  select_example(file, options, selection);
  selection.layers = resolve(options.choice.layers, "--layers", "layers", file.attn.size(1));
  selection.heads = resolve(options.choice.heads, "--heads", "heads", file.attn.size(2));
  narrow(options, selection);
  select_tokens(file, options, selection);
  if (!options.hide_special) return selection;
  if (file.src.empty() && file.tgt.empty()) {
    throw UsageError(
        fmt::format("--hide-special: {} has no tokens (arrays src, tgt)", options.input.name()));
  }
  selection.special_keys = hide(file.src, selection.example, "keys", options.keep, selection.keys);
  selection.special_queries =
      hide(file.tgt, selection.example, "queries", options.keep, selection.queries);
  return selection;
}

}  // namespace

std::string example_name(const AttentionFile& file, Index example) {
  const std::string line = file.line.values.empty() ? "" : fmt::format(" (line {})", example + 1);
  return fmt::format("example {} of {}{}", example, file.attn.size(0), line);
}

std::vector<Index> page_examples(const AttentionFile& file, const ViewOptions& options) {
  check_example(file, options.choice);
  if (options.choice.example >= 0) return {options.choice.example};
  const bool names_tokens =
      options.tokens.given() || options.queries.given() || options.keys.given();
  std::vector<Index> examples;
  for (Index n = 0; n < file.attn.size(0); ++n) {
    if (names_tokens || !is_empty(file, n)) examples.push_back(n);
  }
  if (examples.empty()) static_cast<void>(select(file, options));  // throws
  return examples;
}

Selection select(const AttentionFile& file, const ViewOptions& options) {
  Selection selection = select_rows(file, options);
  for (const Index row : selection.queries) selection.named.push_back(file.query_of(row));
  return selection;
}
